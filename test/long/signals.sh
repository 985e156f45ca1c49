#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Signals at random moments of every tool's long work, many seeds: test/tools/test_signals.sh at length. Usage: signals.sh BUILD.
set -euo pipefail
DS_SOURCE_DIR=$(cd "$(dirname "$0")/../.." && pwd)
export DS_SOURCE_DIR
for seed in 21 22 23; do
    DS_SIGNAL_SEED=$seed DS_SIGNAL_CASES=200 bash "$DS_SOURCE_DIR/test/tools/test_signals.sh" "$1"
done
