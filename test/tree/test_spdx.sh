#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: tree
# Each file of ours names its licence. Usage: test_spdx.sh BUILD
set -euo pipefail
git -C "$DS_SOURCE_DIR" rev-parse --git-dir > /dev/null 2>&1 || { echo "no git tree: nothing tells our files from others"; exit 77; }
exec python3 "$DS_SOURCE_DIR/scripts/spdx.py"
