#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Ranks that differ in what a rank can differ in, at random: CASES of them (default 1500). Usage: ranks_differ.sh BUILD
set -euo pipefail
build=$1
exec bash "$(dirname "$0")/../train/test_ranks_differ.sh" "$build" "${CASES:-1500}" "${SEED:-$RANDOM}"
