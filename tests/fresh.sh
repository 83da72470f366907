#!/usr/bin/env bash
# Does the README hold for a stranger? Clones HEAD into a new folder, with an empty HOME and no caches,
# and runs the first two `make` commands that the README names: the first serves, so one dispatch is sent
# to it and must succeed; the second must pass. KEEP=1 leaves the folder behind.
set -euo pipefail
source_tree=$(git -C "$(dirname "$0")/.." rev-parse --show-toplevel)

scratch=$(mktemp -d "${TMPDIR:-/tmp}/kubeharness-fresh.XXXXXX")
server=
finish() {
  local status=$?
  trap - EXIT
  [ -z "$server" ] || kill -TERM -- "-$server" 2>/dev/null || true
  [ -n "${KEEP:-}" ] && echo "left behind: $scratch" || { chmod -R u+w "$scratch" 2>/dev/null; rm -rf "$scratch"; }
  exit $status
}
trap finish EXIT
trap 'exit 130' INT TERM

# What a client needs to reach its registry stays; what remembers an earlier run goes.
kept=()
while IFS= read -r -d '' pair; do
  case "${pair%%=*}" in
    GOPATH | GOCACHE | GOMODCACHE | GOENV | GOBIN | *_CACHE_DIR | *_cache | UV_CACHE_DIR | NPM_CONFIG_CACHE) ;;
    PATH | LANG | LC_* | TERM | TZ | CI | PYENV_ROOT) kept+=("$pair") ;;
    PIP_* | UV_* | NPM_* | npm_config_* | NODE_EXTRA_CA_CERTS | GO[A-Z]*) kept+=("$pair") ;;
    SSL_CERT* | *_CA_BUNDLE | *_CAINFO | *_PROXY | *_proxy) kept+=("$pair") ;;
  esac
done < <(env -0)
mkdir "$scratch/home"
kept+=("HOME=$scratch/home")
# Go keeps its settings below HOME: those that are about the machine go along.
if command -v go >/dev/null; then
  for name in GOFLAGS GOPROXY GOSUMDB GOTOOLCHAIN; do kept+=("$name=$(go env $name)"); done
fi
in_clone() { (cd "$scratch/clone" && exec env -i "${kept[@]}" "$@"); }

git clone --quiet "$source_tree" "$scratch/clone"
echo "== $(git -C "$scratch/clone" log -1 --format='%h %s') in $scratch/clone"

mapfile -t commands < <(sed -n 's/^\(\$ \)\{0,1\}\(make [a-z]*\)\( *#.*\)\{0,1\}$/\2/p' "$scratch/clone/README.md" | head -2)
[ ${#commands[@]} -eq 2 ] || { echo "README.md names no two make commands" >&2; exit 1; }

read -r port health < <(python3 - <<'PY'
import socket
with socket.socket() as one, socket.socket() as two:
    one.bind(("127.0.0.1", 0)); two.bind(("127.0.0.1", 0))
    print(one.getsockname()[1], two.getsockname()[1])
PY
)
log=$scratch/first.log
echo "== ${commands[0]}"
# A session of its own, so that its whole process group can be ended.
(cd "$scratch/clone" && exec setsid env -i "${kept[@]}" "KUBEHARNESS_PORT=$port" "KUBEHARNESS_HEALTH_PORT=$health" \
  bash -c "${commands[0]}") >"$log" 2>&1 </dev/null &
server=$!

python3 - "$port" "$server" <<'PY' || { tail -40 "$log" >&2; exit 1; }
"""Wait until the server is ready, send one dispatch, insist that it succeeded."""
import json, os, sys, time, urllib.error, urllib.request

base, pid = f"http://127.0.0.1:{sys.argv[1]}", int(sys.argv[2])
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
started = time.monotonic()
while True:
    try:
        opener.open(f"{base}/readyz", timeout=5).read()
        break
    except (urllib.error.URLError, OSError) as error:
        if time.monotonic() - started > 300:
            sys.exit(f"not ready after 300 s: {error}")
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            sys.exit("the first command ended before it was ready")
        time.sleep(0.2)
print(f"   ready after {time.monotonic() - started:.1f} s, setting up included")

request = urllib.request.Request(
    f"{base}/agents/assistant/demo?wait=true",
    data=json.dumps({"kind": "user", "body": "what time is it?"}).encode(),
    headers={"Content-Type": "application/json"},
)
try:
    answer = json.loads(opener.open(request, timeout=60).read())
except urllib.error.HTTPError as error:
    sys.exit(f"POST was answered {error.code}: {error.read().decode(errors='replace')}")
print("  ", json.dumps(answer))
if answer.get("status") != "succeeded":
    sys.exit("the dispatch did not succeed")
PY

kill -TERM -- "-$server"
for _ in $(seq 150); do kill -0 -- "-$server" 2>/dev/null || break; sleep 0.2; done
! kill -0 -- "-$server" 2>/dev/null || { echo "the server did not end within 30 s of SIGTERM" >&2; exit 1; }
server=

echo "== ${commands[1]}"
in_clone bash -c "${commands[1]}"
