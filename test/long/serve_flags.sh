#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Random command lines and hostfiles of ds_serve, for TEST_SECONDS (default 3600). Usage: serve_flags.sh BUILD
set -euo pipefail
exec bash "$(dirname "$0")/../tools/test_serve_flags.sh" "$1" 100 "${SEED:-$RANDOM}" "${TEST_SECONDS:-3600}"
