#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# What ds_plan --device plans is what the accelerator cuda executes over the stand-in of its driver, step by step, for random
# configurations. Usage: test_cuda_plan.sh BUILD [SEED [COUNT]]
set -euo pipefail
build=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 "$DS_SOURCE_DIR/test/accel/plan_device.py" "$build" "${2:-1}" "${3:-4}"
