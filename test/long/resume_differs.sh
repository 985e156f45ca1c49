#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Resumes with what a resume can differ in, at random: CASES of them (default 1000). Usage: resume_differs.sh BUILD
set -euo pipefail
build=$1
exec bash "$(dirname "$0")/../train/test_resume_random.sh" "$build" "${CASES:-1000}" "${SEED:-$RANDOM}"
