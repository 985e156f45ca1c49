#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Runs of ds_train at random on the accelerator cuda over the stand-ins, beside cpu's: cuda_random.py.
# Usage: test_cuda_random.sh BUILD [CASES [SEED]] (default 1; the long test takes another each time)
set -euo pipefail
command -v python3 > /dev/null || { echo "no python3"; exit 77; }
exec python3 "$(dirname "$0")/cuda_random.py" "$1" "${2:-3}" "${3:-1}"
