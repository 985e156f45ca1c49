#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ds_bench --serve: against a server of known conduct (load_bench.py, which needs Python's own library alone). Usage: … BUILD
set -eu
command -v python3 > /dev/null || { echo "no python3"; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
script=$(realpath "$(dirname "$0")/load_bench.py")
build=$(realpath "$1")
cd "$scratch"
python3 "$script" "$build/ds_bench"
