#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Where nvcc is installed: every kernel of src/accel/cuda was compiled for three architectures, and needs no
# more registers, shared memory and spilled bytes than the committed table says. labels: slow
set -euo pipefail
exec python3 "$DS_SOURCE_DIR/scripts/cuda_resources.py" check --logs "$1/cuda"
