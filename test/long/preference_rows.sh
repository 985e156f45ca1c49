#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Random rows of preferences: batches as ours and as TRL's trainers and collators make them. Usage: preference_rows.sh BUILD. Needs
# DS_ORACLE_PYTHON: a Python with datasets, transformers and TRL. ROWS: how many a case (60); SEED.
set -euo pipefail
build=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
if [ -z "${DS_ORACLE_PYTHON:-}" ]; then
    echo "not run: DS_ORACLE_PYTHON names no Python with TRL"
    exit 77
fi
rows=$(mktemp)
trap 'rm -f "$rows"' EXIT
seed=${SEED:-$RANDOM}
echo "seed $seed"
"$DS_ORACLE_PYTHON" "$here/../golden/data/make_preferences.py" "$rows" "${ROWS:-60}" "$seed"
DS_PREFERENCE_ROWS=$rows "$build/test_preference_rows"
