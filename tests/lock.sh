#!/usr/bin/env bash
# Compiles the locks anew. They name no registry: whoever installs brings their own.
set -euo pipefail
cd "$(dirname "$0")/.."

uv=.venv-tools/bin/uv
export UV_PYTHON_DOWNLOADS=never
unset PIP_FIND_LINKS PIP_INDEX_URL PIP_EXTRA_INDEX_URL UV_FIND_LINKS
compile=("$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes
  --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" "$@")

"${compile[@]}" pyproject.toml --output-file gateway/requirements.txt
# What makes our wheel in gateway/Dockerfile.
"${compile[@]}" --group build --output-file gateway/build-requirements.txt
# The tests run on exactly the runtime that ships.
"${compile[@]}" pyproject.toml --group dev --constraints gateway/requirements.txt --output-file tests/requirements.txt
echo "uv==$("$uv" self version --short | cut -d' ' -f1)" | "${compile[@]}" - --output-file tests/uv.txt

npm install --prefix tests --package-lock-only --no-update-notifier --omit-lockfile-registry-resolved --no-audit --no-fund --loglevel=error
