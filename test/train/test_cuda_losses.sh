#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# ds_train --accelerator cuda by preferences, with a teacher, with DoRA and with each optimizer, on stand-ins of the driver and
# cuBLASLt: cpu's losses. Usage: test_cuda_losses.sh BUILD
set -euo pipefail
build=$(cd "$1" && pwd)
length=24
data=text.txt
# shellcheck source=test/common/train_runs.sh
. "$DS_SOURCE_DIR/test/common/train_runs.sh"
awk 'BEGIN {for (i = 0; i < 400; ++i) printf "%d and %d make %d. ", i % 17, i % 5, i % 17 + i % 5}' > text.txt
awk 'BEGIN {for (i = 0; i < 32; ++i) printf "{\"prompt\": \"%d and %d\", \"chosen\": \" make %d\", \"rejected\": \" or %d\"}\n", i % 7, i % 5, i % 7 + i % 5, i}' > pairs.jsonl
cat > llama.json << 'END'
{"model_type": "llama", "vocab_size": 257, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
 "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": false, "intermediate_size": 40}
END
config adamw.json '"train_micro_batch_size_per_gpu": 4'
both() { # NAME CONFIG DATA FLAGS: 2 steps on cpu and on cuda
    local name=$1 config=$2 data=$3
    shift 3
    train 1 "$config" "cpu.$name" --steps 2 "$@" || fail "$name on cpu" "cpu.$name.log"
    on_cuda 3 1 "$config" "cuda.$name" --steps 2 "$@" || fail "$name on cuda" "cuda.$name.log"
    near "cpu.$name" "cuda.$name" || fail "$name: $(losses "cuda.$name" | tr '\n' ' '), on cpu $(losses "cpu.$name" | tr '\n' ' ')"
}
model=(--model_config llama.json)
both dpo adamw.json pairs.jsonl "${model[@]}" --objective dpo
both dora adamw.json text.txt "${model[@]}" --lora 2 --lora_method dora
train 1 adamw.json start --steps 1 "${model[@]}" || fail "the teacher" start.log
"$build/ds_checkpoint" export start teacher > /dev/null
both distil adamw.json text.txt "${model[@]}" --teacher teacher --distill_weight 0.8 --distill_temperature 2 --distill_mix 0.5
for kind in AdamW8bit AdEMAMix Adafactor AdamWScheduleFree; do
    config "$kind.json" "\"train_micro_batch_size_per_gpu\": 4"
    sed -i "s/\"AdamW\"/\"$kind\"/" "$kind.json"
    [ "$kind" != Adafactor ] || sed -i 's/"lr": 3e-3/"lr": 3e-3, "relative_step": false/' "$kind.json"
    both "$kind" "$kind.json" text.txt "${model[@]}"
done
echo "cuda's losses are cpu's"
