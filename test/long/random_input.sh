#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The random tests of flags, configuration files and uneven micro-batches with more cases and other seeds. Usage: random_input.sh BUILD
set -euo pipefail
build=$1
DS_FLAGS_CASES=${DS_FLAGS_CASES:-300000} DS_FLAGS_SEED=${DS_FLAGS_SEED:-1000000} "$build/test_config_flags"
DS_NUMBERS_CASES=${DS_NUMBERS_CASES:-3000} "$build/test_config_numbers"
DS_AVERAGE_CASES=${DS_AVERAGE_CASES:-400} "$build/test_loss_average"
