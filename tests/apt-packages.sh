#!/usr/bin/env bash
# The Debian packages that the tests need, and how they get here. Asks apt only for what is missing.
#
#   tests/apt-packages.sh           for `make test`
#   tests/apt-packages.sh cluster   also for the image and the node tier: `make image`, `make cluster-up`
set -euo pipefail

packages=(
  etcd-server    # tests/cluster: the API server's store
  postgresql-15  # conformance on the oldest Postgres we promise
  nginx-light    # tests/cli: a real proxy that holds streams back, or does not
)
case "${1:-}" in
  "") ;;
  cluster)
    packages+=(
      buildah mmdebstrap  # the image and its base, where no Docker engine answers
      runc                # tests/image: a container with a read-only root
      containerd containernetworking-plugins iptables conntrack  # tests/cluster: the node
    )
    ;;
  *)
    echo "usage: $0 [cluster]" >&2
    exit 2
    ;;
esac

missing=()
for package in "${packages[@]}"; do
  dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || { echo "install these as root, then run this again: ${missing[*]}" >&2; exit 1; }
  as_root=(sudo)
fi
echo "installing ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
# RUNLEVEL=1: the tests start their own servers, so the packages' services stay down.
"${as_root[@]}" env RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
  apt-get install -qq --yes --no-install-recommends "${missing[@]}" >/dev/null
