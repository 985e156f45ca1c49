#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# ds_config check has ds_train's verdict and words: random configurations and flags (check_agrees.py).
# DS_CASES: how many; DS_SEED: which.
set -euo pipefail
exec python3 "$DS_SOURCE_DIR/test/tools/check_agrees.py" "$1" "${DS_CASES:-60}" "${DS_SEED:-1}"
