#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Hostile names in every kind of input, many seeds: test/tools/test_hostile_names.sh at length. Usage: hostile_names.sh BUILD.
set -euo pipefail
DS_SOURCE_DIR=$(cd "$(dirname "$0")/../.." && pwd)
export DS_SOURCE_DIR
for seed in 101 102 103; do
    DS_HOSTILE_SEED=$seed DS_HOSTILE_CASES=2000 bash "$DS_SOURCE_DIR/test/tools/test_hostile_names.sh" "$1"
done
