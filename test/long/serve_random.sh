#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Random requests of ds_serve, alone and in a crowd, for TEST_SECONDS (default 3600). Usage: serve_random.sh BUILD
set -euo pipefail
exec bash "$(dirname "$0")/../tools/test_serve_random.sh" "$1" 1 "${SEED:-$RANDOM}" "${TEST_SECONDS:-3600}"
