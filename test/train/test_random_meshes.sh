#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Random models, meshes and options against one rank and against the plain mesh; see random_meshes.py.
# Usage: test_random_meshes.sh BUILD [CASES [SEED]] (default 6 cases, or 3 of make check, and seed 1; the long test takes another each time)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/random_meshes.py" "$1" "$here/../.." "${2:-$((4 / ${DS_MATRIX_PART:-1} + 2))}" "${3:-1}"
