#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# ds_generate on several ranks and stages: the text of one rank, greedy and drawn, from a folder and a checkpoint; an answer of --chat; what fails
# ends all ranks with a message. Usage: test_generate_cli_ranks.sh BUILD
set -euo pipefail
build=$(realpath "$1")
cd "$(dirname "$0")/../.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cat > "$scratch/model.json" << 'JSON'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 258, "hidden_size": 64, "intermediate_size": 96,
"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
"hidden_act": "silu", "tie_word_embeddings": false}
JSON
"$build/ds_train" --model_config "$scratch/model.json" --tokenizer bytes --data data/tinyshakespeare.txt --steps 20 --seq_length 32 \
    --micro_batch 8 --learning_rate 3e-3 --output "$scratch/out" > "$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }
ranks() { local n=$1; shift; "$build/deepspeed" --num_gpus "$n" "$build/ds_generate" "$@" 2> "$scratch/err"; }
same() { # FLAGS…: on 1, 2, 3 and 4 ranks
    "$build/ds_generate" "$@" > "$scratch/want" 2> "$scratch/err" || { cat "$scratch/err"; exit 1; }
    for n in 2 3 4; do
        ranks "$n" "$@" > "$scratch/got" || { cat "$scratch/err"; exit 1; }
        cmp "$scratch/want" "$scratch/got"
    done
    for n in 2 4; do
        ranks "$n" "$@" --pipeline_stages 2 > "$scratch/got" || { cat "$scratch/err"; exit 1; }
        cmp "$scratch/want" "$scratch/got"
    done
}
common=(--tokenizer bytes --dtype f32)
same --model "$scratch/out" "${common[@]}" --prompt "First Citizen: " --max_new_tokens 40
same --model "$scratch/out" "${common[@]}" --prompt "First Citizen: " --max_new_tokens 40 --temperature 1 --seed 3 --top_k 20
same --checkpoint "$scratch/out" "${common[@]}" --prompt "ROMEO" --max_new_tokens 20
same --model "$scratch/out" "${common[@]}" --chat --chat_template chatml --prompt "Who?" --max_new_tokens 20
blocks=(--model "$scratch/out" "${common[@]}" --prompt "First Citizen: " --max_new_tokens 40 --quantize q8_0)
"$build/ds_generate" "${blocks[@]}" > "$scratch/want" 2> "$scratch/err" || { cat "$scratch/err"; exit 1; }
ranks 2 "${blocks[@]}" > "$scratch/got" || { cat "$scratch/err"; exit 1; }
cmp "$scratch/want" "$scratch/got"
fails() { # WORDS FLAGS…: on two ranks, and nothing on standard output of what was not asked
    if ranks 2 "${@:2}" > "$scratch/got"; then echo "should fail: $*"; exit 1; fi
    grep -qF "$1" "$scratch/err" || { cat "$scratch/err"; exit 1; }
}
fails "gives ranks no standard input" --model "$scratch/out" "${common[@]}"
fails "the prompt is empty" --model "$scratch/out" "${common[@]}" --prompt ""
fails "$scratch/none" --model "$scratch/none" "${common[@]}" --prompt a
fails "stages 3 is no divisor of the 2 ranks" --model "$scratch/out" "${common[@]}" --prompt a --pipeline_stages 3
if "$build/ds_generate" --model "$scratch/out" "${common[@]}" --prompt a --pipeline_stages 2 2> "$scratch/err"; then exit 1; fi
grep -qF "2 stages of one rank" "$scratch/err"
fails "without adapter and stages" "${blocks[@]}" --pipeline_stages 2
fails "128" --model "$scratch/out" "${common[@]}" --prompt "$(printf 'x%.0s' {1..200})"
