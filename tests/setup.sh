#!/usr/bin/env bash
# Sets up .venv, and for tests also the npm servers and Debian packages. Quick when nothing changed.
#
#   tests/setup.sh run      what `kubeharness` needs to run
#   tests/setup.sh tests    all of it
#   tests/setup.sh uv       only uv, for `make lock`
#
# Each step leaves a stamp that holds the hash of what it was made from.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${VENV:-.venv}
tools=.venv-tools
export UV_PYTHON_DOWNLOADS=never
export UV_LINK_MODE=copy

hash_of() { cat "$@" | sha256sum | cut -d' ' -f1; }
stamped() { [ -e "$1" ] && [ "$(cat "$1")" = "$2" ]; }

install_uv() {
  local wanted
  wanted=$(hash_of tests/uv.txt)
  stamped "$tools/.uv" "$wanted" && return
  rm -rf "$tools"
  python3 -m venv "$tools"
  "$tools/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
    --only-binary :all: --require-hashes -r tests/uv.txt
  echo "$wanted" >"$tools/.uv"
}

find_python() { # 3.11, the floor, if it is here; PYTHON=3.13 insists on another
  local wanted=${PYTHON:-3.11} below_pyenv
  "$tools/bin/uv" python find --system "$wanted" 2>/dev/null && return
  for below_pyenv in "${PYENV_ROOT:-$HOME/.pyenv}/versions/$wanted".*/bin/python; do
    [ ! -x "$below_pyenv" ] || { echo "$below_pyenv"; return; }
  done
  [ -z "${PYTHON:-}" ] || { echo "no Python $PYTHON on this machine" >&2; return 1; }
  "$tools/bin/uv" python find --system '>=3.11'
}

install_python() { # requirements, stamp
  local requirements=$1 stamp=$venv/$2 uv=$tools/bin/uv wanted interpreter
  # Of pyproject.toml only what is installed counts, not the tools' settings below it.
  wanted=$(sed '/^# --- ruff/,$d' pyproject.toml | cat - "$requirements" | sha256sum | cut -d' ' -f1)
  stamped "$stamp" "$wanted" && return
  install_uv
  if [ ! -x "$venv/bin/python" ]; then
    interpreter=$(find_python)
    "$uv" venv --quiet --clear --python "$interpreter" "$venv"
  fi
  rm -f "$venv"/.stamp-run "$venv"/.stamp-tests
  "$uv" pip sync --quiet --python "$venv" "$requirements"
  "$uv" pip install --quiet --python "$venv" --no-deps --editable .
  echo "$wanted" >"$stamp"
}

install_npm() {
  local wanted
  wanted=$(hash_of tests/package.json tests/package-lock.json)
  stamped tests/node_modules/.stamp "$wanted" && return
  npm ci --prefix tests --no-update-notifier --no-audit --no-fund --loglevel=error
  echo "$wanted" >tests/node_modules/.stamp
}

case "${1:-tests}" in
  uv) install_uv ;;
  run)
    # The tests' set holds the runtime too: whoever has it keeps it.
    if [ -e "$venv/.stamp-tests" ]; then
      install_python tests/requirements.txt .stamp-tests
    else
      install_python gateway/requirements.txt .stamp-run
    fi
    ;;
  tests)
    tests/apt-packages.sh
    install_python tests/requirements.txt .stamp-tests
    install_npm
    ;;
  *)
    echo "usage: $0 run | tests | uv" >&2
    exit 2
    ;;
esac
