#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Random requests of ds_serve, alone and in a crowd, and one answer against another, for TEST_SECONDS (default 3600).
# Usage: serve_random.sh BUILD
set -euo pipefail
seed=${SEED:-$RANDOM}
part=$((${TEST_SECONDS:-3600} / 4)) # decoders, those that carry a state, what answers say of each other, then sources and what is made of them
bash "$(dirname "$0")/../tools/test_serve_random.sh" "$1" 1 "$seed" "$part"
bash "$(dirname "$0")/../tools/test_serve_random_states.sh" "$1" 1 "$seed" "$part"
bash "$(dirname "$0")/../tools/test_serve_scores.sh" "$1" 1 "$seed" "$part"
exec bash "$(dirname "$0")/../tools/test_serve_random_t5.sh" "$1" 1 "$seed" "$part"
