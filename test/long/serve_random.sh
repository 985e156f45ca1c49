#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Random requests of ds_serve, alone and in a crowd: RUNS of 40 (default 100). Usage: serve_random.sh BUILD
set -euo pipefail
seed=${SEED:-$RANDOM}
bash "$(dirname "$0")/../tools/test_serve_random_t5.sh" "$1" "${RUNS:-100}" "$seed"
exec bash "$(dirname "$0")/../tools/test_serve_random.sh" "$1" "${RUNS:-100}" "$seed"
