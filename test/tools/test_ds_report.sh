#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ds_report: its sections, that it agrees with the system, its flags and exit codes. Usage: test_ds_report.sh BUILD
set -euo pipefail
build=$1
fail() {
    echo "FAILED: $1"
    exit 1
}
text=$("$build/ds_report")
for words in "Native operator report" "Machine" "Software" "Backends" "accelerator cpu .* \[OKAY\]" \
    "ranks: shared memory .* \[OKAY\]" "file I/O: io_uring " "file I/O: threads .* \[OKAY\]" "instruction set in use" \
    "^cpu \.+ .*; auto takes it$" "^sim \.+ .*; only by name$" "^auto \.+ cpu: "; do
    grep -qE "$words" <<< "$text" || fail "no line with \"$words\""
done
for tool in ssh mpirun srun pdsh; do # each in its row, whether it tells a version or not
    found=$(grep "^$tool \.\.\." <<< "$text")
    if command -v "$tool" > /dev/null; then
        [[ $found != *"not found" ]] || fail "$tool is there: $found"
    else
        [[ $found = *"not found" ]] || fail "$tool is not there: $found"
    fi
done
if [ -e "$build/libdeepspeed_ucx.so" ]; then # found beside the program, however that was found
    elsewhere=$(cd / && PATH=$build:$PATH && ds_report)
    grep -qE "ranks: UCX .* \[OKAY\]" <<< "$elsewhere" || fail "UCX is not found by way of PATH"
fi
model=$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1)
[ -z "$model" ] || grep -qF "$model" <<< "$text" || fail "the processor is not $model"
flags=" $(sed -n 's/^flags[[:space:]]*: //p' /proc/cpuinfo | head -n 1) " # the system's own list, where it has one
for name in avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512_vnni avx512_bf16 avx512_fp16 amx_tile amx_bf16 amx_int8; do
    [ -n "$model" ] || break
    found=$(grep '^processor features' <<< "$text") has=no listed=no
    [[ "$found " = *" $name "* ]] && has=yes
    [[ $flags = *" $name "* ]] && listed=yes
    [ "$has" = "$listed" ] || fail "$name: of the processor $has, listed by the system $listed"
done
[ "$(DS_CPU_ISA=ref "$build/ds_report" | grep -c '^avx2.*\[NO\]')" = 1 ] || fail "DS_CPU_ISA=ref still uses avx2"
if "$build/ds_report" --hide_operator_status | grep -q "Native operator"; then fail "operators are not hidden"; fi
code=0
"$build/ds_report" --no_such_flag > /dev/null 2>&1 || code=$?
[ "$code" = 2 ] || fail "an unknown flag gives exit code $code"
