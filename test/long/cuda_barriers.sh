#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every barrier and wait of the CUDA kernels taken out, one at a time: the tests must miss each (cuda_barriers.py).
set -euo pipefail
cd "$(dirname "$0")/../.."
cmake -S . -B build-tsan -G Ninja -DDS_SANITIZE=thread -DDS_WERROR=OFF -DCMAKE_BUILD_TYPE=None "-DCMAKE_C_FLAGS=-O1 -g1" > build-tsan.log
cmake --build build-tsan --target test_cuda_kernels >> build-tsan.log
rm -f build-tsan.log
exec python3 test/long/cuda_barriers.py build-tsan
