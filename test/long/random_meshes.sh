#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Random models, meshes and options against one rank: CASES of them (default 300). Usage: random_meshes.sh BUILD
set -euo pipefail
build=$1
exec bash "$(dirname "$0")/../train/test_random_meshes.sh" "$build" "${CASES:-300}" "${SEED:-$RANDOM}"
