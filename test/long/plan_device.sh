#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# test_cuda_plan at length. Usage: plan_device.sh BUILD [SEED [COUNT]]
set -euo pipefail
DS_SOURCE_DIR=$(cd "$(dirname "$0")/../.." && pwd)
export DS_SOURCE_DIR
exec bash "$(dirname "$0")/../accel/test_cuda_plan.sh" "$1" "${2:-1}" "${3:-200}"
