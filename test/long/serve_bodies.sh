#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Random bodies of every path of ds_serve, for TEST_SECONDS (default 3600). Usage: serve_bodies.sh BUILD
set -euo pipefail
exec bash "$(dirname "$0")/../tools/test_serve_bodies.sh" "$1" 2000 "${SEED:-$RANDOM}" "${TEST_SECONDS:-3600}"
