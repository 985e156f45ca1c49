#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# config.json against transformers: random mutations of tiny models of the families, MODEL_CONFIG_CASES of them
# (default 6000) with seed MODEL_CONFIG_SEED (default: the day). DS_ORACLE_PYTHON names a Python with torch and
# transformers 5. Run by `make check-long`. Usage: model_config.sh BUILD
set -euo pipefail
if [ -z "${DS_ORACLE_PYTHON:-}" ]; then
    echo "model_config: not run: DS_ORACLE_PYTHON is not set"
    exit 77
fi
exec "$DS_ORACLE_PYTHON" "$(dirname "$0")/model_config.py" "$1" "${MODEL_CONFIG_CASES:-6000}" \
    "${MODEL_CONFIG_SEED:-$(date +%Y%m%d)}"
