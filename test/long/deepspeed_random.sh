#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Folders of DeepSpeed for Python with a file that is deleted, cut short, another rank's or another folder's, or has another byte: each is
# read with the values that it had, or refused by name. Prints how many were refused. Usage: deepspeed_random.sh BUILD
# FOLDER_DAMAGES=N: so many in all (40000).
set -euo pipefail
all=${FOLDER_DAMAGES:-40000}
for seed in 1 2 3 4 5 6 7 8; do
    env FOLDER_DAMAGES=$((all / 8)) FOLDER_SEED=$((seed * 1000003)) "$1/test_deepspeed_random" 2>&1 | grep -E 'refused|damaged|is read with|names no file' || exit 1
done
