#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that are missing. Usage: setup.sh build|check|long|bench|net|hosts
# Says which first; says and does nothing when all are there.
set -euo pipefail

build="gcc cmake ninja-build pkg-config libc6-dev libjansson-dev libpcre2-dev libxxhash-dev libutf8proc-dev nettle-dev zlib1g-dev libzstd-dev libsnappy-dev libcmocka-dev libhwloc-dev liburing-dev libedit-dev libmicrohttpd-dev libgnutls28-dev"
net="$build libopenmpi-dev openmpi-bin libmpich-dev mpich libucx-dev iproute2"
check="$net clang-format mandoc python3 git g++ abigail-tools python3-venv"
long="$check clang-14 libclang-rt-14-dev"
bench="$build libdnnl-dev"
hosts="openssh-server openssh-client pdsh slurm-wlm munge"

case "${1:-build}" in
build) packages=$build ;;
check) packages=$check ;;
long) packages=$long ;;
bench) packages=$bench ;;
net) packages=$net ;; # optional: MPI and UCX between hosts, and what their tests need
hosts) packages=$hosts ;; # optional: tests across hosts; without them these are skipped with their reason
*) echo "usage: $0 build|check|long|bench|net|hosts" >&2; exit 2 ;;
esac

missing=""
for package in $packages; do
    if ! dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q '^install ok installed'; then
        missing="$missing $package"
    fi
done
[ -z "$missing" ] && exit 0

echo "Installing missing packages:$missing"
as_root=""
if [ "$(id -u)" != 0 ]; then
    command -v sudo > /dev/null || { echo "Run as root, or install:$missing" >&2; exit 1; }
    as_root="sudo"
fi
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086
if ! $as_root apt-get install -y -qq --no-install-recommends $missing > /dev/null 2>&1; then
    $as_root apt-get update -qq
    # shellcheck disable=SC2086
    $as_root apt-get install -y -qq --no-install-recommends $missing > /dev/null
fi
