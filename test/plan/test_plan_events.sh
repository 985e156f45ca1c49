#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Plans without one of their waits, with a late one, without one of their copies: the checker finds it, and no wait is redundant.
# Six of the twenty plans of plan_events; all of them: test/long/plan_events.sh. Usage: test_plan_events.sh BUILD.
set -euo pipefail
build=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
"$build/plan_events" 0 4 5 12 15 17
# What runs is what the plan says: on sim, most waits that are needed are missed by the bits.
TMPDIR=/dev/shm "$build/sim_events" 23 12
