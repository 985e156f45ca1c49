#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: tree
# The binary interface is the committed baseline's, and the library exports what the headers declare.
set -euo pipefail
[ "$(uname -m)" = x86_64 ] || { echo "the baseline is of x86_64"; exit 77; }
exec "$DS_SOURCE_DIR/scripts/abi.sh" check "$1/libdeepspeed.so"
