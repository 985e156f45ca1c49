#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every folder, adapter and way of ds_generate on cuda over the stand-ins, beside cpu's (cuda_texts.py).
# Usage: cuda_texts.sh BUILD
set -euo pipefail
exec python3 "$(dirname "$0")/cuda_texts.py" "$1"
