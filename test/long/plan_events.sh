#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# All plans of plan_events (about 10 s): each wait and each copy taken out, one at a time. Run by `make check-long`.
# Usage: plan_events.sh BUILD.
set -euo pipefail
build=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
"$build/plan_events"
