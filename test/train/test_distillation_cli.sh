#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Distillation by ds_train: the same weights whatever the ZeRO stage, offload and recompute; near them under tensor and sequence
# parallelism; resumed; closer to the teacher than without it; planned; what does not go with it is refused by name.
# Usage: test_distillation_cli.sh BUILD
set -euo pipefail
build=$1
data=text.txt
length=32
# shellcheck source=test/common/train_runs.sh
. "$DS_SOURCE_DIR/test/common/train_runs.sh"
model() { # FILE, WIDTH, HEADS, LAYERS, VOCABULARY
    cat > "$1" <<END
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": $5, "hidden_size": $2, "intermediate_size": 96,
 "num_hidden_layers": $4, "num_attention_heads": $3, "num_key_value_heads": 2, "max_position_embeddings": 128,
 "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": false}
END
}
head -c 40000 "$DS_SOURCE_DIR/data/tinyshakespeare.txt" > text.txt
model teacher.json 64 4 2 256
model student.json 32 4 1 256
config z0.json '"zero_optimization": {"stage": 0}'
train 2 z0.json teacher --model_config teacher.json --steps 12 || fail "the teacher does not train" teacher.log
"$build/ds_checkpoint" export teacher big > /dev/null
distil=(--model_config student.json --teacher big --distill_weight 0.8 --distill_temperature 2 --distill_mix 0.5)

train 2 z0.json plain "${distil[@]}" --steps 4 || fail "ZeRO 0" plain.log
want=$(weights plain)
"$build/ds_checkpoint" inspect plain | grep -q teacher && fail "the teacher is in the checkpoint"
for stage in 1 2 3; do
    config "z$stage.json" "\"zero_optimization\": {\"stage\": $stage}"
    train 2 "z$stage.json" "zero$stage" "${distil[@]}" --steps 4 || fail "ZeRO $stage" "zero$stage.log"
    [ "$(weights "zero$stage")" = "$want" ] || fail "ZeRO $stage gives other weights"
done
config off.json '"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}},
    "activation_checkpointing": {"recompute": "full"}'
train 2 off.json off "${distil[@]}" --steps 2 || fail "offload" off.log
train 2 z2.json off "${distil[@]}" --steps 4 --resume || fail "resume at another stage" off.log
[ "$(weights off)" = "$want" ] || fail "offload, recompute and resume give other weights"

config tp.json '"zero_optimization": {"stage": 1}, "tensor_parallel": {"autotp_size": 2}'
train 2 tp.json tp "${distil[@]}" --steps 4 || fail "tensor parallel" tp.log
near tp plain || fail "tensor parallel: other losses" tp.log
config sp.json '"zero_optimization": {"stage": 3}, "sequence_parallel_size": 2'
train 2 sp.json sp "${distil[@]}" --steps 4 || fail "sequence parallel" sp.log
near sp plain || fail "sequence parallel: other losses" sp.log

# compression is of the student alone
for pattern in mlp '^model.*mlp'; do
    config q.json "\"zero_optimization\": {\"stage\": 0}, \"compression_training\": {\"weight_quantization\": {\"shared_parameters\": {
        \"enabled\": true, \"schedule_offset\": 0}, \"different_groups\": {\"one\": {\"params\": {\"start_bits\": 3, \"target_bits\": 3},
        \"modules\": [\"$pattern\"]}}}}"
    train 1 q.json "quantized${#pattern}" "${distil[@]}" --steps 2 || fail "compressed" "quantized${#pattern}.log"
done
[ "$(losses quantized3)" = "$(losses quantized11)" ] || fail "the teacher is compressed: $(losses quantized3) $(losses quantized11)"
[ "$(losses quantized3)" != "$(losses plain | head -2)" ] || fail "nothing is compressed"

refused() { # TEXT, FLAGS
    local text=$1
    shift
    if train 1 z0.json no --steps 1 "$@"; then fail "taken: $*"; fi
    grep -q "$text" no.log || fail "refused without \"$text\": $*" no.log
}
model other.json 32 4 1 300
refused "vocabulary of 256 tokens, the model of 300" --model_config other.json --teacher big
mkdir swapped
cp big/config.json big/model.safetensors swapped
sed -E 's/"a": *97/"?":97/; s/"b": *98/"a":98/; s/"[?]":97/"b":97/' teacher/tokenizer.json > swapped/tokenizer.json
refused "id 97 is 'b', that of the data's is 'a'" --model_config student.json --teacher swapped
refused "distill_weight is of --teacher" --model_config student.json --distill_weight 0.5
refused "beside an adapter" --model big --teacher big --lora 2
refused "nowhere" --model_config student.json --teacher nowhere
config auto.json '"zero_optimization": {"stage": 0}, "pipeline": {"stages": 2, "schedule": "auto"}'
if train 2 auto.json no "${distil[@]}" --steps 1; then fail "stages beside a teacher"; fi
grep -q "beside pipeline.stages" no.log || fail "stages beside a teacher: another error" no.log
grep -q "fits" no.log && fail "a choice that is refused afterwards is told" no.log
if train 2 z0.json plain --model_config student.json --steps 5 --resume; then fail "resumed without the teacher"; fi
grep -q "was trained with the teacher" plain.log || fail "resumed without the teacher: another error" plain.log
"$build/ds_plan" --model_config student.json --teacher big --deepspeed_config z3.json --world_size 2 --seq_length 32 > plan.txt ||
    fail "ds_plan" plan.txt
grep -q "teacher.model" plan.txt || fail "no plan" plan.txt
echo PASS
