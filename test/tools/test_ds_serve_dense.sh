#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ds_serve serves folders with modules Dense: serve_dense.py, which needs Python's own library alone. Usage: test_ds_serve_dense.sh BUILD
set -u
build=$1
[ -x "$build/ds_serve" ] || { echo "ds_serve is not built: libmicrohttpd-dev is missing"; exit 77; }
command -v python3 > /dev/null || { echo "no python3"; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 1
python3 "$DS_SOURCE_DIR/test/tools/serve_dense.py" "$build/ds_serve" "$DS_SOURCE_DIR/test/golden/encoder_tasks/sentence" || exit 1
echo PASS
