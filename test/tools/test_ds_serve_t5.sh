#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# T5 by ds_serve: serve_t5.py, which needs Python's own library alone.
set -u
build=$1
[ -x "$build/ds_serve" ] || { echo "ds_serve is not built: libmicrohttpd-dev is missing"; exit 77; }
command -v python3 > /dev/null || { echo "no python3"; exit 77; }
golden=$DS_SOURCE_DIR/test/golden
python3 "$DS_SOURCE_DIR/test/tools/serve_t5.py" "$build" "$golden/t5" "$golden/parity/llama3_tied"
