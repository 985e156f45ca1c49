#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Random reloads of ds_serve under load, for TEST_SECONDS (default 3600). Usage: serve_reloads.sh BUILD
set -euo pipefail
exec bash "$(dirname "$0")/../tools/test_serve_reloads.sh" "$1" 100 "${SEED:-$RANDOM}" "${TEST_SECONDS:-3600}"
