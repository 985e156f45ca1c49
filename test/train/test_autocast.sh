#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# torch_autocast: the bits of bf16.enabled, and fp16 with torch's loss scaler; over ranks what is no safe module travels in fp32; a
# resume as another precision is refused. Usage: test_autocast.sh BUILD
set -euo pipefail
build=$1
data=text.txt
length=32
# shellcheck source=test/common/train_runs.sh
. "$DS_SOURCE_DIR/test/common/train_runs.sh"
head -c 6000 "$DS_SOURCE_DIR/data/tinyshakespeare.txt" > text.txt
model=(--model_config "$DS_SOURCE_DIR/test/common/gpt2.json")
run() { # NAME, RANKS, KEYS, FLAGS
    config "$1.json" "$3"
    train "$2" "$1.json" "$1" "${model[@]}" --steps 3 "${@:4}" || fail "$1" "$1.log"
}
same() { [ "$(weights "$1")" = "$(weights "$2")" ] || fail "$1 and $2 have other weights"; }
run plain 1 '"zero_optimization": {"stage": 0}'
run bf16 1 '"bf16": {"enabled": true}'
run auto 1 '"torch_autocast": {"enabled": true}'
run both 1 '"bf16": {"enabled": true}, "torch_autocast": {"enabled": true, "dtype": "torch.bfloat16"}'
run off 1 '"torch_autocast": {"enabled": false, "dtype": "bfloat16"}'
same auto bf16
same both bf16
same off plain
[ "$(weights auto)" != "$(weights plain)" ] || fail "autocast computes in fp32"

# over ranks: safe modules travel in the type, others in fp32
run bf16_2 2 '"bf16": {"enabled": true}, "zero_optimization": {"stage": 3}'
run bf16_wide 2 '"bf16": {"enabled": true}, "communication_data_type": "fp32", "zero_optimization": {"stage": 3}'
run auto_2 2 '"torch_autocast": {"enabled": true, "lower_precision_safe_modules": ["torch.nn.Conv2d", "torch.nn.Linear"]}, "zero_optimization": {"stage": 3}'
run auto_wide 2 '"torch_autocast": {"enabled": true, "lower_precision_safe_modules": ["torch.nn.Conv2d"]}, "zero_optimization": {"stage": 3}'
same auto_2 bf16_2
same auto_wide bf16_wide
[ "$(weights auto_wide)" != "$(weights auto_2)" ] || fail "what travels in fp32 has the bits of bf16"

run fp16 1 '"fp16": {"enabled": true, "loss_scale_window": 2000, "hysteresis": 1}'
run auto16 1 '"torch_autocast": {"enabled": true, "dtype": "float16"}'
same auto16 fp16

! train 1 plain.json auto "${model[@]}" --steps 4 --resume || fail "a resume in fp32 of a run in bf16"
grep -q torch_autocast auto.log || fail "a resume in fp32" auto.log
echo PASS
