#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Checkpoints of meshes with tp, sp, dp and ZeRO stages, resumed on each other; see mesh_pairs.py.
# Usage: test_mesh_pairs.sh BUILD [MESHES] (default 4; the long test takes 16)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/mesh_pairs.py" "$1" "$here/../.." "${2:-4}"
