#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# ds_accel_test: what is built passes, a shared object of its own too, and each fault of one is found by the check that it breaks.
# Usage: test_tool_accel.sh BUILD
set -euo pipefail
build=$(cd "$1" && pwd)
cd "$build"
text=
check() { # CODE PATTERN ARGUMENT…
    local code=0 want=$1 pattern=$2
    shift 2
    text=$(./ds_accel_test "$@" 2>&1) || code=$?
    [ "$code" = "$want" ] || { echo "ds_accel_test $*: exit $code, expected $want: $text" >&2; exit 1; }
    grep -qE "$pattern" <<< "$text" || { echo "ds_accel_test $*: no \"$pattern\" in: $text" >&2; exit 1; }
}
for name in cpu sim sim:seed=2,turn=1 sim:seed=3,turn=100000 ./own_accel_0.so "$build/own_accel_0.so"; do
    check 0 "^training: .* passed$" "$name" --rounds 2
done
check 0 "^streams: .* passed$" sim --seed 5
check 0 "^graphs: .* passed$" sim --seed 6
check 0 "^graphs: .* passed$" sim:seed=9,turn=1 --rounds 1
check 0 "^graphs: .* passed$" sim:graphs=0 --rounds 1
check 0 "^graphs: .* not checked: it captures no graphs$" ./own_accel_0.so --rounds 1
check 0 "^streams: .* not checked: it has no streams$" cpu --rounds 1
check 0 "^disks: .* not checked: the host moves what is on disk$" sim --rounds 1
check 0 "^training: .* not checked: it computes nothing$" null --rounds 1
check 1 "^memory: .* FAILED: copy and fill: byte" ./own_accel_1.so
check 1 "^memory: .* FAILED: copy and fill: byte" ./own_accel_2.so
check 1 "^memory: .* FAILED: alloc: byte 0 of block 0 is 1, expected 0" ./own_accel_3.so
check 1 "made for version 10 of the accelerators' interface, this library has 9" ./own_accel_4.so
check 1 "own_accel_5.so: lacks kernels with choose" ./own_accel_5.so
check 1 "^training: .* FAILED: loss of step 1" ./own_accel_6.so
check 1 "the accelerator chose kernel tiles of [a-z_]*, which needs own1; there is [a-z0-9_+]*own0" ./own_accel_7.so
check 1 "^ds_accel_test: there is no accelerator \"own_accel_0.so\"; expected one of auto, cpu, null, sim, cuda, or the path" own_accel_0.so
check 1 "cannot load the accelerator ./none.so" ./none.so
check 1 "is no accelerator: it has no function ds_accel_v9" "$(ldconfig -p | grep -oE '/[^ ]*libm\.so\.6' | head -n 1)"
check 1 "accelerator ./own_accel_0.so has no options" ./own_accel_0.so:x
check 2 "expected the name of one accelerator"
check 2 "unknown|--bad" cpu --bad
echo "accelerators are checked"
