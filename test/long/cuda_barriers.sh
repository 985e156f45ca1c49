#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every barrier and wait of the CUDA kernels taken out, one at a time: the tests must miss each (cuda_barriers.py).
# It goes on where a run before was ended. Usage: cuda_barriers.sh BUILD [--minutes N]…
set -euo pipefail
cmake --build "$1" --target test_cuda_kernels > /dev/null
exec python3 "$(dirname "$0")/cuda_barriers.py" "$@"
