#!/usr/bin/env bash
# labels: slow
# Ranks that differ in a flag, a file or a bit of one are named before anything is trained; see ranks_differ.py.
# Usage: test_ranks_differ.sh BUILD [CASES [SEED]]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/ranks_differ.py" "$1" "${2:-30}" "${3:-1}"
