#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Random graphs on random meshes, as make check runs two thousand: PLACE_CASES (20000) from PLACE_SEED (the time) on.
set -euo pipefail
DS_PLACE_CASES=${PLACE_CASES:-20000} DS_PLACE_SEED=${PLACE_SEED:-$(date +%s)00000} "$1/test_place_random" > "$1/place_random.log" 2>&1 ||
    { tail -n 40 "$1/place_random.log"; exit 1; }
grep -E "SEED|placed" "$1/place_random.log"
