#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Random distillations against transformers' models with TRL's divergence. Usage: distill_random.sh BUILD. Needs DS_ORACLE_PYTHON: a
# Python with torch, transformers and TRL; without it it is skipped (77). CASES (60); SEED.
set -euo pipefail
[ -n "${DS_ORACLE_PYTHON:-}" ] || { echo "skipped: DS_ORACLE_PYTHON"; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
seed=${SEED:-$RANDOM}
echo "seed $seed"
TRL_EXPERIMENTAL_SILENCE=1 "$DS_ORACLE_PYTHON" "$(dirname "$0")/distill_random.py" "$(realpath "$1")" "$scratch" "${CASES:-60}" "$seed"
