#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Resumes with a flag, key, field, data, ranks, stage or residency changed at random; see resume_differs.py.
# Usage: test_resume_random.sh BUILD [CASES [SEED]] (default 1; the long test takes another each time)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/resume_differs.py" "$1" "$here/../.." "${2:-40}" "${3:-1}"
