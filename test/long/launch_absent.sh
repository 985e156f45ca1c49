#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Ranks that never join, many random jobs: test/launch/test_launch_absent.sh at length. Usage: launch_absent.sh BUILD.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
for seed in 11 12 13; do
    DS_ABSENT_SEED=$seed DS_ABSENT_CASES=100 bash "$root/test/launch/test_launch_absent.sh" "$1"
done
