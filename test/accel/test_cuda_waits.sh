#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The accelerator cuda over the stand-in of its driver, without one of the plan's waits, and without one of the waits of the
# driver's calls: another result, or a fault, shows it. DS_CUDA_WAITS=N: each N-th, default 90. Usage: test_cuda_waits.sh BUILD
# labels: slow
set -euo pipefail
TMPDIR=/dev/shm "$1/sim_events" "${DS_CUDA_WAITS:-90}" 6 cuda
