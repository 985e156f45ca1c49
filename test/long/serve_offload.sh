#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Random flags and files that say where ds_serve's weights are, for TEST_SECONDS (default 3600). Usage: serve_offload.sh BUILD
set -euo pipefail
exec bash "$(dirname "$0")/../tools/test_serve_offload.sh" "$1" 50 "${SEED:-$RANDOM}" "${TEST_SECONDS:-3600}"
