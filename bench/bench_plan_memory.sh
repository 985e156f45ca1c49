#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Predicted peak memory against measured: GPT-2 124M and a Llama of 134M, runs above 1 GiB, on one to four ranks, stages 0
# to 3, in three precisions, with recomputation and offload; and 26 meshes of tensor, sequence, expert parallel ranks and
# stages (rows "mesh …"). Usage: bench_plan_memory.sh BUILD [TEXT]; TEXT: only rows whose name has it.
# Measured is the largest sum, over the run, of anonymous and of the proportional share of shared memory of a rank
# (the largest rank counts); predicted is what ds_plan says the rank needs. Prints a line a row and how many lie within 3 %.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1 only=${2:-}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
config() { # STAGE MICRO_BATCH ACCUMULATION DTYPE MORE
    printf '{"train_micro_batch_size_per_gpu": %s, "gradient_accumulation_steps": %s, "steps_per_print": 1000,
"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "%s": {"enabled": %s}, "zero_optimization": {"stage": %s%s}%s}\n' \
        "$2" "$3" "$([ "$4" = fp16 ] && echo fp16 || echo bf16)" "$([ "$4" = fp32 ] && echo false || echo true)" "$1" \
        "${5:-}" "${6:-}"
}
# Kilobytes of a process: anonymous, and its share of what others map too.
memory_of() {
    local anon shared
    anon=$(sed -n 's/^RssAnon:[[:space:]]*\([0-9]*\).*/\1/p' "/proc/$1/status" 2> /dev/null) || true
    shared=$(sed -n 's/^Pss_Shmem:[[:space:]]*\([0-9]*\).*/\1/p' "/proc/$1/smaps_rollup" 2> /dev/null) || true
    echo $((${anon:-0} + ${shared:-0}))
}
# Runs a command; prints the largest memory_of any of its RANKS ds_train processes, in kilobytes. What they share counts while
# all are there: the last one alone would have all of it.
watch() { # RANKS COMMAND
    local most=0 ranks=$1 n top now pid
    shift
    "$@" > "$folder/log" 2>&1 &
    local job=$!
    while kill -0 "$job" 2> /dev/null; do
        n=0 top=0
        for pid in $(pgrep -x ds_train); do
            grep -qz "$folder/config.json" "/proc/$pid/cmdline" 2> /dev/null || continue
            now=$(memory_of "$pid")
            [ "$now" -le "$top" ] || top=$now
            [ "$now" -eq 0 ] || n=$((n + 1))
        done
        [ "$n" -ne "$ranks" ] || [ "$top" -le "$most" ] || most=$top
        sleep 0.3
    done
    wait "$job" || { cat "$folder/log" >&2; exit 1; }
    echo "$most"
}
cat > "$folder/llama.json" << 'JSON'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 50304, "hidden_size": 768, "intermediate_size": 2048,
"num_hidden_layers": 8, "num_attention_heads": 12, "num_key_value_heads": 4, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5,
"hidden_act": "silu", "tie_word_embeddings": false}
JSON
cat > "$folder/mixtral.json" << 'JSON'
{"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "vocab_size": 50304, "hidden_size": 512, "intermediate_size": 1024,
"num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5,
"hidden_act": "silu", "tie_word_embeddings": false, "num_local_experts": 4, "num_experts_per_tok": 2}
JSON
cat > "$folder/t5.json" << 'JSON'
{"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "vocab_size": 50304, "d_model": 768, "d_kv": 64, "d_ff": 2048,
"num_layers": 6, "num_decoder_layers": 6, "num_heads": 12, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": false,
"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
JSON
head -c 40000 data/tinyshakespeare.txt > "$folder/eval.txt" # a plan has room for evaluation too
awk 'BEGIN {for (i = 0; i < 8; ++i) { # near a row
    text = ""
    for (j = 0; j < 450; ++j) text = text " " substr("abcdefghijklmnop", 1 + (i * 5 + j * j) % 16, 1)
    printf "{\"prompt\": \"%s\", \"completion\": \"%s\"}\n", text, text}}' > "$folder/pairs.jsonl"
model=bench/gpt2_124m.json seq=1024 data=data/tinyshakespeare.txt eval=$folder/eval.txt
within=0 rows=0
row() { # NAME RANKS STAGE MICRO ACCUMULATION DTYPE ZERO_KEYS KEYS
    [[ $1 == *"$only"* ]] || return 0
    config "$3" "$4" "$5" "$6" "${7:-}" "${8:-}" > "$folder/config.json"
    local threads=$(($2 == 1 ? 2 : 1))
    local args=(--model_config "$model" --seq_length "$seq" --deepspeed_config "$folder/config.json"
        --threads "$threads")
    local need
    "$build/ds_plan" "${args[@]}" --world_size "$2" --memory 1TB --json "$folder/plan.json"
    need=$(sed -n 's/.*"need": \([0-9]*\), "available".*/\1/p' "$folder/plan.json")
    local train=("$build/ds_train" "${args[@]}" --tokenizer data/gpt2 --data "$data" --eval_data "$eval" --steps 2)
    [ "$2" -eq 1 ] || train=("$build/deepspeed" --num_gpus "$2" "${train[@]}")
    local measured
    measured=$(watch "$2" "${train[@]}")
    awk -v name="$1" -v need="$need" -v kib="$measured" 'BEGIN {
        printf "%-34s predicted %8.1f MiB, measured %8.1f MiB, measured/predicted %.4f\n", name, need / 1048576,
            kib / 1024, kib * 1024 / need }'
    rows=$((rows + 1))
    within=$((within + $(awk "BEGIN { r = $measured * 1024 / $need; print (r > 0.97 && r < 1.03) ? 1 : 0 }")))
}
disk='"device": "nvme", "nvme_path": "'$folder'"'
states=", \"offload_optimizer\": {$disk}"
all="$states, \"offload_param\": {$disk}, \"sub_group_size\": 10000000, \"stage3_max_live_parameters\": 10000000,
\"stage3_max_reuse_distance\": 10000000, \"stage3_prefetch_bucket_size\": 5000000"
recompute() { printf ', "activation_checkpointing": {"recompute": "%s"%s}' "$1" "${2:-}"; }

row "1 rank, bf16, 4 rows" 1 0 4 1 bf16
row "1 rank, bf16, 2 rows, 2 micro-batches" 1 0 2 2 bf16
row "1 rank, fp16, 4 rows" 1 0 4 1 fp16
row "1 rank, fp32, 2 rows" 1 0 2 1 fp32
row "1 rank, bf16, 4 rows, selective" 1 0 4 1 bf16 '' "$(recompute selective)"
row "1 rank, bf16, 4 rows, full" 1 0 4 1 bf16 '' "$(recompute full)"
row "1 rank, bf16, 8 rows, full over 3" 1 0 8 1 bf16 '' "$(recompute full ', "interval": 3')"
row "1 rank, bf16, 4 rows, states on disk" 1 2 4 1 bf16 "$states"
row "1 rank, fp32, 4 rows, states on disk" 1 2 4 1 fp32 "$states"
row "1 rank, bf16, 4 rows, all on disk" 1 3 4 1 bf16 "$all"
row "1 rank, bf16, 8 rows, all on disk, full" 1 3 8 1 bf16 "$all" "$(recompute full)"
row "1 rank, bf16, 4 rows, activations on disk" 1 0 4 1 bf16 '' "$(recompute none ", \"nvme_path\": \"$folder\"")"
for stage in 0 1 2 3; do
    row "2 ranks, bf16, stage $stage, 2 rows" 2 "$stage" 2 1 bf16
done
row "2 ranks, bf16, stage 2, 4 rows, selective" 2 2 4 1 bf16 '' "$(recompute selective)"
row "2 ranks, fp32, stage 3, 2 rows" 2 3 2 1 fp32
row "2 ranks, bf16, stage 3, 4 rows, all on disk" 2 3 4 1 bf16 "$all"
row "3 ranks, fp16, stage 1, 2 rows" 3 1 2 1 fp16
row "4 ranks, bf16, stage 2, 2 rows" 4 2 2 1 bf16
row "4 ranks, bf16, stage 3, 2 rows" 4 3 2 1 bf16
model=$folder/llama.json
row "Llama, 1 rank, bf16, 4 rows" 1 0 4 1 bf16
row "Llama, 1 rank, fp32, 2 rows, full" 1 0 2 1 fp32 '' "$(recompute full)"
row "Llama, 2 ranks, bf16, stage 3, 2 rows" 2 3 2 1 bf16
row "Llama, 4 ranks, bf16, stage 1, 2 rows" 4 1 2 1 bf16

# Meshes, on rows of 512 tokens.
seq=512
tp() { printf ', "tensor_parallel": {"autotp_size": %s}' "$1"; }
sp() { printf ', "sequence_parallel_size": %s' "$1"; }
pp() { printf ', "pipeline": {"stages": %s}' "$1"; }
ep() { printf ', "expert_parallel": {"enabled": true, "autoep_size": %s}' "$1"; }
full=$(recompute full)
row "mesh tp 2, bf16" 2 0 4 1 bf16 '' "$(tp 2)"
row "mesh tp 2, fp32, full" 2 0 4 1 fp32 '' "$(tp 2)$full"
row "mesh tp 2, bf16, states on disk" 2 1 4 1 bf16 "$states" "$(tp 2)"
row "mesh tp 2 x dp 2, bf16, stage 1" 4 1 4 1 bf16 '' "$(tp 2)"
row "mesh tp 2 x dp 2, bf16, stage 3" 4 3 4 1 bf16 '' "$(tp 2)"
row "mesh tp 4, bf16" 4 0 8 1 bf16 '' "$(tp 4)"
row "mesh tp 2, bf16, in halves" 2 0 4 1 bf16 '' "$(tp '2, "domino": true')"
row "mesh tp 2 x dp 2, fp32, stage 3, in halves" 4 3 4 1 fp32 '' "$(tp '2, "domino": true')$full"
row "mesh sp 2, bf16" 2 0 4 1 bf16 '' "$(sp 2)"
row "mesh sp 2, fp32, stage 3, full" 2 3 4 1 fp32 '' "$(sp 2)$full"
row "mesh sp 2 x dp 2, bf16, stage 2" 4 2 4 1 bf16 '' "$(sp 2)"
row "mesh sp 4, bf16, stage 1" 4 1 8 1 bf16 '' "$(sp 4)"
row "mesh pp 2, bf16, 4 micro-batches" 2 0 2 4 bf16 '' "$(pp 2)"
row "mesh pp 2, fp32, full, 4 micro-batches" 2 0 2 4 fp32 '' "$(pp 2)$full"
row "mesh pp 2 x dp 2, bf16, stage 1, 4" 4 1 2 4 bf16 '' "$(pp 2)"
row "mesh pp 2 x dp 2, bf16, stage 3, 4" 4 3 2 4 bf16 '' "$(pp 2)"
row "mesh pp 4, bf16, 4 micro-batches" 4 0 4 4 bf16 '' "$(pp 4)"
row "mesh pp 2, zb-v, bf16, 4 micro-batches" 2 0 2 4 bf16 '' ', "pipeline": {"stages": 2, "schedule": "zb-v"}'
row "mesh pp 4, zb-v, bf16, 8 micro-batches" 4 0 2 8 bf16 '' ', "pipeline": {"stages": 4, "schedule": "zb-v"}'
row "mesh tp 2 x sp 2, bf16" 4 0 8 1 bf16 '' "$(tp 2)$(sp 2)"
row "mesh tp 2 x pp 2, bf16, 4 micro-batches" 4 0 4 4 bf16 '' "$(tp 2)$(pp 2)"
row "mesh sp 2 x pp 2, bf16, 4 micro-batches" 4 0 4 4 bf16 '' "$(sp 2)$(pp 2)"
model=$folder/mixtral.json
row "mesh Mixtral, ep 2, bf16, stage 1" 2 1 4 1 bf16 '' "$(ep 2)"
row "mesh Mixtral, ep 2, bf16, stage 3" 2 3 4 1 bf16 '' "$(ep 2)"
row "mesh Mixtral, ep 4, bf16, stage 2" 4 2 4 1 bf16 '' "$(ep 4)"
row "mesh Mixtral, ep 2 x tp 2, bf16" 4 0 4 1 bf16 '' "$(ep 2)$(tp 2)"
row "mesh Mixtral, ep 2 x sp 2, bf16" 4 0 4 1 bf16 '' "$(ep 2)$(sp 2)"
row "mesh Mixtral, ep 2 x pp 2, bf16, 4" 4 1 2 4 bf16 '' "$(ep 2)$(pp 2)"
model=$folder/t5.json seq=512 data=$folder/pairs.jsonl eval=$folder/pairs.jsonl
row "T5, 1 rank, bf16, 2 rows" 1 0 2 1 bf16
row "T5, 1 rank, fp32, 2 rows, full" 1 0 2 1 fp32 '' "$(recompute full)"
row "T5, 2 ranks, bf16, stage 3" 2 3 2 1 bf16
row "mesh T5, pp 2, bf16" 2 0 2 2 bf16 '' "$(pp 2)"
echo "$within of $rows within 3 %"
