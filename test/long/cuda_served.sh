#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Many models, requests and crowds at random on cuda over the stand-ins, beside cpu's (test_cuda_served, test_cuda_encoders). CASES (300);
# ROUNDS (10) of all encoders; SEED.
# Usage: cuda_served.sh BUILD
set -euo pipefail
seed=${SEED:-$RANDOM}
echo "seed $seed"
"$1/test_cuda_encoders" "${ROUNDS:-10}" "$seed"
exec "$1/test_cuda_served" "${CASES:-300}" "$seed"
