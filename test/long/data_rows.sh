#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Random data files (Parquet, CSV, TSV, JSON lists) by pyarrow and Python, their rows as ours and as pyarrow and pandas read
# them. Usage: data_rows.sh BUILD. Needs DS_ORACLE_PYTHON: a Python with pyarrow and pandas. FILES: how many (1500).
set -euo pipefail
build=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
if [ -z "${DS_ORACLE_PYTHON:-}" ]; then
    echo "not run: DS_ORACLE_PYTHON names no Python with pyarrow and pandas"
    exit 77
fi
exec "$DS_ORACLE_PYTHON" "$here/data_rows.py" "$build/data_rows" "${FILES:-1500}" "${SEED:-$RANDOM}"
