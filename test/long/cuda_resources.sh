#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every kernel of src/accel/cuda compiled for sm_80, sm_90a and sm_100, beside the committed table of registers, spills and shared memory:
# by the system's nvcc or, without one, by PyPI's of the table's version in a scratch environment (CUDA_NVCC=pypi: by that one anyway).
# Usage: cuda_resources.sh BUILD
set -euo pipefail
check=(python3 "$(dirname "$0")/../../scripts/cuda_resources.py" check)
if [ "${CUDA_NVCC:-}" != pypi ]; then
    code=0
    "${check[@]}" || code=$?
    [ $code -eq 77 ] || exit $code
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
version=$(sed -nE '1s/^# nvcc ([0-9.]+);.*/\1/p' "$(dirname "$0")/../golden/cuda_resources.txt")
packages=()
for package in nvcc crt runtime; do
    packages+=("nvidia-cuda-$package==$version.*")
done
python3 -m venv "$scratch/venv"
"$scratch/venv/bin/pip" install --quiet "${packages[@]}" "nvidia-nvvm==$version.*" || { echo "no nvcc here, and PyPI's cannot be had"; exit 77; }
nvcc=$(find "$scratch/venv" -path '*/bin/nvcc' -print -quit)
"${check[@]}" --nvcc "$nvcc"
