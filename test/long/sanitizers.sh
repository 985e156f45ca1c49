#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every test under address and undefined-behaviour sanitizers, those with threads under the thread sanitizer: the slow ones and
# every row of long tables and the checks of alignment, null, object-size and pointer-overflow too, which `make check` leaves out, but four
# tests that cannot (scripts/check.sh). An hour on two cores. Usage: sanitizers.sh BUILD
set -euo pipefail
CHECK_WHOLE=1 exec "$(dirname "$0")/../../scripts/check.sh"
