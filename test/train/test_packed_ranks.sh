#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# QLoRA with ranks along tp, each of which holds its rows or columns of the packed matrices: the losses of one rank to 1e-5, in every
# format, with DoRA, beside ZeRO; less memory; saved by two ranks and resumed by one; blocks that would be divided are refused.
# Usage: test_packed_ranks.sh BUILD
set -euo pipefail
build=$1
golden=$DS_SOURCE_DIR/test/golden/adapter
scratch=$(mktemp -d)
[ -n "${KEEP:-}" ] || trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
fail() { echo "FAIL: $*" >&2; exit 1; }
widths() { # hidden size, head dim, intermediate size
    sed -E "s/\"hidden_size\": [0-9]+/\"hidden_size\": $1/; s/\"intermediate_size\": [0-9]+/\"intermediate_size\": $3/; s/\"head_dim\": [0-9]+/\"head_dim\": $2/
        s/\"num_attention_heads\": [0-9]+/\"num_attention_heads\": 4/; s/\"num_key_value_heads\": [0-9]+/\"num_key_value_heads\": 2/" \
        "$golden/models/llama/config.json"
}
widths 128 32 256 > model.json
config() { # file, keys
    echo "{\"train_batch_size\": 4, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-2}}$2}" > "$1.json"
}
tp='"tensor_parallel": {"autotp_size": 2}'
config one ''
config tp ", $tp"
config dp ", $tp, \"zero_optimization\": {\"stage\": 3, \"stage3_param_persistence_threshold\": 0}"
common=(--tokenizer bytes --data "$golden/rows.jsonl" --seq_length 48 --lr_scheduler_type none --loss_average targets --threads 1 --report none)
"$build/ds_train" --model_config model.json "${common[@]}" --steps 1 --deepspeed_config one.json --output base > base.log 2>&1 || fail "$(cat base.log)"
run() { # name, ranks, configuration, flags …
    local name=$1 ranks=$2 config=$3
    shift 3
    "$build/deepspeed" --num_gpus "$ranks" "$build/ds_train" --model base "${common[@]}" --deepspeed_config "$config.json" --lora 4 \
        --metrics "$name.jsonl" --output "$name" "$@" > "$name.log" 2>&1 || fail "$name: $(cat "$name.log")"
}
losses() { sed -nE 's/.*"loss":([0-9.e-]+).*/\1/p' "$1.jsonl"; }
near() {
    paste <(losses "$1") <(losses "$2") | awk '{d = $1 - $2; bad = bad || d > 1e-5 || d < -1e-5; n++} END {exit bad || n != 3}' ||
        fail "$1 and $2: $(losses "$1" | xargs), $(losses "$2" | xargs)"
}
for bits in 4bit 8bit fp8; do
    for method in lora dora; do
        [ $bits$method != fp8dora ] || continue
        flags=(--load_in_"$bits" --lora_method "$method" --steps 3)
        run $bits.$method.one 1 one "${flags[@]}"
        run $bits.$method.tp 2 tp "${flags[@]}"
        near $bits.$method.one $bits.$method.tp
        grep -qE 'tensor parallel: 2 ranks share .* 9[0-9] % of the elements' $bits.$method.tp.log || fail "$(cat $bits.$method.tp.log)"
    done
done
run ranks 4 dp --load_in_8bit --steps 3
near ranks 8bit.lora.one
# what two ranks saved one goes on with: the frozen model is the same
run resumed 2 tp --load_in_4bit --steps 2
sed -i '/"step":[12],/!d' resumed.jsonl
mv resumed.jsonl first.jsonl
"$build/ds_train" --model base "${common[@]}" --deepspeed_config one.json --lora 4 --load_in_4bit --steps 3 --resume --metrics last.jsonl --output resumed \
    > resumed.log 2>&1 || fail "resumed by one rank: $(cat resumed.log)"
cat first.jsonl last.jsonl > both.jsonl
near both 4bit.lora.one
# memory of a rank
plan() { "$build/ds_plan" --model_config model.json --deepspeed_config "$@" --seq_length 48 --lora 4 --load_in_4bit | sed -nE 's/^  parameters +([0-9.]+)$/\1/p'; }
awk "BEGIN {exit !($(plan tp.json --world_size 2) < 0.9 * $(plan one.json))}" || fail "memory: $(plan tp.json --world_size 2) of $(plan one.json)"
refuses() { # words, model, flags …
    local words=$1 model=$2
    shift 2
    if "$build/deepspeed" --num_gpus 2 "$build/ds_train" --model_config "$model" "${common[@]}" --steps 1 --deepspeed_config tp.json --lora 2 "$@" \
        > refused.log 2>&1; then fail "accepted: $*"; fi
    grep -q -- "$words" refused.log || fail "$*: $(cat refused.log)"
}
widths 128 16 96 > narrow.json
refuses 'autotp_size 2 .*(nf4): 2 ranks would divide a block of .*o_proj.weight (128 x 64, shared by its inputs); the nearest size below that goes is 1' \
    narrow.json --load_in_4bit
refuses 'leave --bnb_4bit_use_double_quant out' model.json --load_in_4bit --bnb_4bit_use_double_quant
echo "all right"
