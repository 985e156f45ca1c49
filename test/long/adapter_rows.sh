#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Random adapters of one run (--adapters), each against a run of its own: the same bits. Usage: adapter_rows.sh BUILD.
# DS_ADAPTER_CASES: how many, 2000; DS_ADAPTER_SEED: the first, the day.
set -euo pipefail
exec "$1/test_adapter_rows_random" "${DS_ADAPTER_CASES:-2000}" "${DS_ADAPTER_SEED:-$(date +%Y%m%d)}"
