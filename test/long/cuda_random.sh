#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Many runs of ds_train at random on cuda over the stand-ins, beside cpu's (test/train/cuda_random.py). CASES (300); SEED.
# Usage: cuda_random.sh BUILD
set -euo pipefail
seed=${SEED:-$RANDOM}
echo "seed $seed"
exec python3 "$(dirname "$0")/../train/cuda_random.py" "$1" "${CASES:-300}" "$seed"
