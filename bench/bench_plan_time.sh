#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Predicted step time against measured: GPT-2 124M and a Llama of 77M, on one, two and four ranks, stages 0 to 3, in three
# precisions, with accumulation, recomputation and offload to host and disk. Leave the machine alone meanwhile.
# Usage: bench_plan_time.sh BUILD [mesh] [--only PATTERN] [--profiles DIR] [--folder DIR] [--steps N] [--shorter N] [--traces DIR]
# mesh: in place of them 24 configurations of two and four ranks that share layers, sequences, experts or stages, alone and
# together, of a small Llama and a small Mixtral; some eight minutes.
# --only: rows whose name matches the extended regular expression PATTERN. --profiles: take the profiles there, measure and
# keep those that it lacks (one for each number of ranks; without it all are measured anew). --folder: the disk of offloaded
# states. --steps: timed steps. --shorter: sequences of an N-th, 128 tokens at least, for a slow machine.
# --traces: for each row keeps there what ds_plan diff sets side by side, to see where a prediction is wrong.
# Predicted is what ds_plan says on a profile of this machine measured by as many ranks; measured is the median step of
# ds_train after the first. Prints a line a row and how many lie within 20 %.
# A shared machine changes speed. Its rate of arithmetic is compared (bench_speed) with what it was when its profile was
# measured, before and after a run; where that is a tenth off, or other guests took more than 3 % of the processor during the run,
# the row is run again, with a profile measured anew from the third time on, four times at most; a new profile replaces the one in --profiles. What was not counted is printed too.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1 tokenizer=data/gpt2 list=plain only='' profiles='' disk_folder=${TMPDIR:-/tmp} steps=4 shorter=1 traces=''
shift
if [ "${1:-}" = mesh ]; then
    list=mesh tokenizer=bytes
    shift
fi
while [ $# -gt 1 ]; do
    case $1 in
    --only) only=$2 ;;
    --profiles) profiles=$2 ;;
    --folder) disk_folder=$2 ;;
    --steps) steps=$2 ;;
    --shorter) shorter=$2 ;;
    --traces) traces=$2 ;;
    *) break ;;
    esac
    shift 2
done
[ $# -eq 0 ] || { echo "bench_plan_time.sh: what is '$1'? See the head of the script" >&2; exit 2; }
scratch=$(mktemp -d "$disk_folder/bench_plan_time.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
profiles=${profiles:-$scratch}
mkdir -p "$profiles"
quietly() { "$@" > "$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 1; }; }
on() { # RANKS COMMAND…
    local ranks=$1
    shift
    if [ "$ranks" -eq 1 ]; then quietly "$@"; else quietly "$build/deepspeed" --num_gpus "$ranks" "$@"; fi
}
config() { # STAGE ROWS ACCUMULATION DTYPE ZERO_KEYS KEYS
    local precision=''
    [ "$4" = fp32 ] || precision=", \"$4\": {\"enabled\": true}"
    printf '{"train_micro_batch_size_per_gpu": %s, "gradient_accumulation_steps": %s, "steps_per_print": 1000, "gradient_clipping": 1.0,
"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "zero_optimization": {"stage": %s%s}%s%s}\n' \
        "$2" "$3" "$1" "${5:-}" "$precision" "${6:-}" > "$scratch/ds.json"
}
cat > "$scratch/llama.json" << 'JSON'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 50304, "hidden_size": 512, "intermediate_size": 1408,
"num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
"hidden_act": "silu", "tie_word_embeddings": false}
JSON
cat > "$scratch/small.json" << 'JSON'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1408,
"num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
"hidden_act": "silu", "tie_word_embeddings": false}
JSON
cat > "$scratch/mixtral.json" << 'JSON'
{"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "vocab_size": 8192, "hidden_size": 512, "intermediate_size": 704,
"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
"hidden_act": "silu", "num_local_experts": 4, "num_experts_per_tok": 2, "tie_word_embeddings": false}
JSON
rate() { "$build/bench_speed" "$(nproc)" | sed -E 's/.* ([0-9.]+) GFLOP.*/\1/'; }
far() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a < 0.9 * b || a > 1.1 * b) }'; } # RATE RATE
stolen() { awk '/^cpu / { print $9; exit }' /proc/stat; } # hundredths of a second since the machine started
profile_of() { # RANKS: measured where it is missing, while the machine keeps its speed
    local file=$profiles/ranks_$1 before try
    [ ! -f "$file.json" ] || [ -f "$file.speed" ] || rate > "$file.speed" # given: taken as of now
    [ ! -f "$file.json" ] || return 0
    for try in 1 2 3; do
        before=$(rate)
        on "$1" "$build/ds_bench" --profile "$file.json" --profile_folder "$scratch"
        rate > "$file.speed"
        far "$before" "$(cat "$file.speed")" || break
        echo "profile of $1 ranks, try $try: the machine went from $before to $(cat "$file.speed") GFLOP/s"
    done
}
rows=0 within=0 repeated=0 restless=0
measure() { # measures a row into $scratch/row; uses the variables of row()
    local run=(--model_config "$model" --seq_length "$tokens" --deepspeed_config "$scratch/ds.json" --threads "$threads")
    local predicted planned=() traced=()
    if [ -n "$traces" ]; then
        mkdir -p "$traces"
        planned=(--trace "$traces/${name// /_}.plan.json") traced=(--trace "$traces/${name// /_}.run.json")
    fi
    predicted=$("$build/ds_plan" "${run[@]}" "${planned[@]}" --world_size "$ranks" --device "$profile" --json - | tr -d '\n' |
        sed -n -e 's/.*"pipeline": {[^}]*"step": \([0-9.e-]*\), "of": "seconds".*/\1/p; t' \
            -e 's/.*"timeline": {[^{]*"step": {[^}]*"seconds": \([0-9.e-]*\).*/\1/p')
    rm -f "$scratch/metrics"
    on "$ranks" "$build/ds_train" "${run[@]}" --tokenizer "$tokenizer" --data data/tinyshakespeare.txt --steps $((steps + 1)) \
        --metrics "$scratch/metrics" "${traced[@]}"
    sed -n 's/.*"tokens_per_s": *\([0-9.e+]*\).*/\1/p' "$scratch/metrics" | tail -n +2 | sort -g |
        awk -v tokens=$((batch * tokens * accumulation * ranks / shared)) -v predicted="$predicted" -v name="$name" '
            { speed[NR] = $1 }
            END {
                median = (speed[int((NR + 1) / 2)] + speed[int(NR / 2) + 1]) / 2
                measured = tokens / median
                printf "%-62s predicted %7.3f s, measured %7.3f s, ratio %.3f\n", name, predicted, measured, predicted / measured
            }' > "$scratch/row"
}
row() { # RANKS MODEL DTYPE ROWSxTOKENS STAGE WHAT ACCUMULATION ZERO_KEYS KEYS RANKS_WITH_THE_SAME_ROWS
    local ranks=$1 batch=${4%x*} tokens=$((${4#*x} / shorter)) accumulation=${7:-1} model=bench/gpt2_124m.json shared=${10:-1}
    [ "$tokens" -ge 128 ] || tokens=128
    local name="$1 ranks, $2 $3 ${batch}x$tokens, stage $5${6:+, $6}"
    [[ $name =~ $only ]] || return 0
    [ "$2" = gpt2 ] || model=$scratch/$2.json
    local profile=$profiles/ranks_$ranks.json cores threads try before after start ticks percent why
    config "$5" "$batch" "$accumulation" "$3" "${8:-}" "${9:-}"
    cores=$(nproc)
    threads=$((cores > ranks ? cores / ranks : 1))
    for try in 1 2 3 4; do
        [ "$try" -lt 3 ] || rm -f "$profile"
        profile_of "$ranks"
        before=$(rate) start=$(date +%s%N) ticks=$(stolen)
        measure
        percent=$(awk -v t=$(($(stolen) - ticks)) -v n=$(($(date +%s%N) - start)) -v cores="$cores" \
            'BEGIN { printf "%.1f", t * 1e9 / n / cores }')
        after=$(rate) why=''
        far "$before" "$(cat "${profile%.json}.speed")" && why="$before before"
        far "$after" "$(cat "${profile%.json}.speed")" && why="${why:+$why, }$after after"
        awk -v percent="$percent" 'BEGIN { exit !(percent > 3) }' && why="${why:+$why, }$percent % stolen"
        [ -n "$why" ] || break
        [ "$try" -lt 4 ] || break
        echo "$(cat "$scratch/row"): again, the machine was not as profiled ($why; profiled $(cat "${profile%.json}.speed"))"
        repeated=$((repeated + 1))
    done
    rows=$((rows + 1))
    within=$((within + $(awk '{ r = $NF; print (r >= 0.8 && r <= 1.2) ? 1 : 0 }' "$scratch/row")))
    [ -z "$why" ] || restless=$((restless + 1))
    echo "$(cat "$scratch/row")${why:+ (the machine was not as profiled: $why)}"
}
recompute() { printf ', "activation_checkpointing": {"recompute": "%s"}' "$1"; }
disk="\"device\": \"nvme\", \"nvme_path\": \"$scratch\""
states=", \"sub_group_size\": 5000000, \"offload_optimizer\": {$disk, \"pipeline_read\": true, \"pipeline_write\": true, \"buffer_count\": 5}"
all="$states, \"offload_param\": {$disk}, \"stage3_max_live_parameters\": 10000000, \"stage3_max_reuse_distance\": 10000000,
\"stage3_prefetch_bucket_size\": 5000000"
host=", \"sub_group_size\": 5000000, \"offload_optimizer\": {\"device\": \"cpu\"}"

# MESH is "tp N", "sp N", "ep N", "pp N" and words: ring, domino, and schedules of stages, in whatever order.
mesh() { # RANKS MODEL DTYPE ROWSxTOKENS STAGE MESH ACCUMULATION KEYS
    local word last='' tp=1 sp=1 ep=1 pp=1 domino=false schedule=1f1b keys=''
    for word in $6; do
        case $last in tp) tp=$word ;; sp) sp=$word ;; ep) ep=$word ;; pp) pp=$word ;; esac
        case $word in
        domino) domino=true ;;
        ring) keys="$keys, \"sequence_parallel\": {\"attention\": \"ring\", \"load_balance\": true}" ;;
        gpipe | interleaved | zb-*) schedule=$word ;;
        esac
        last=$word
    done
    [ "$tp" -eq 1 ] || keys="$keys, \"tensor_parallel\": {\"autotp_size\": $tp, \"domino\": $domino}"
    [ "$sp" -eq 1 ] || keys="$keys, \"sequence_parallel_size\": $sp"
    [ "$ep" -eq 1 ] || keys="$keys, \"expert_parallel\": {\"enabled\": true, \"autoep_size\": $ep}"
    [ "$pp" -eq 1 ] || keys="$keys, \"pipeline\": {\"stages\": $pp, \"schedule\": \"$schedule\"}"
    row "$1" "$2" "$3" "$4" "$5" "$6" "${7:-1}" '' "$keys${8:-}" $((tp * sp * pp))
}
meshes() {
    mesh 2 small bf16 4x512 0 'tp 2'
    mesh 2 small fp32 2x256 1 'tp 2'
    mesh 2 small bf16 4x512 0 'tp 2 domino'
    mesh 2 small bf16 2x1024 0 'sp 2'
    mesh 2 small fp32 1x512 1 'sp 2'
    mesh 2 small bf16 2x1024 0 'sp 2 ring'
    mesh 2 small bf16 2x512 0 'pp 2' 4
    mesh 2 small bf16 2x512 1 'pp 2 zb-h1' 4
    mesh 2 small bf16 2x512 1 'pp 2 interleaved' 4
    mesh 2 small fp32 1x256 2 'pp 2 zb-v' 4
    mesh 2 mixtral bf16 4x512 0 'ep 2'
    mesh 2 mixtral fp32 1x256 1 'ep 2'
    mesh 2 mixtral bf16 4x512 1 'tp 2'
    mesh 2 mixtral bf16 2x512 1 'pp 2' 4
    mesh 4 small bf16 4x512 2 'tp 2'
    mesh 4 small bf16 2x1024 3 'sp 2'
    mesh 4 small bf16 2x512 1 'pp 2' 4
    mesh 4 small bf16 4x512 0 'tp 2 sp 2'
    mesh 4 small bf16 2x512 1 'tp 2 pp 2' 4
    mesh 4 small bf16 2x512 1 'sp 2 pp 2' 4
    mesh 4 small bf16 1x512 0 'pp 4' 8
    mesh 4 mixtral bf16 2x512 2 'ep 2'
    mesh 4 mixtral bf16 4x512 1 'ep 2 tp 2'
    mesh 4 mixtral bf16 2x512 1 'ep 2 pp 2' 4
}
plain() {
    row 1 gpt2 bf16 4x1024 0
    row 1 gpt2 bf16 1x256 0
    row 1 gpt2 bf16 1x1024 0 "4 micro-batches" 4
    row 1 gpt2 bf16 2x1024 0 "full recompute" 1 '' "$(recompute full)"
    row 1 gpt2 bf16 2x1024 0 "selective recompute" 1 '' "$(recompute selective)"
    row 1 gpt2 fp32 1x512 0
    row 1 gpt2 fp16 1x256 0
    row 1 llama bf16 4x512 0
    row 1 llama bf16 1x2048 0 "full recompute" 1 '' "$(recompute full)"
    row 1 llama fp32 2x256 0
    row 1 llama fp16 1x512 0
    row 1 gpt2 bf16 4x1024 2 "states on disk" 1 "$states"
    row 1 gpt2 bf16 2x512 2 "states on disk" 1 "$states"
    row 1 gpt2 bf16 2x1024 3 "states and parameters on disk" 1 "$all"
    row 1 gpt2 fp32 1x512 2 "states on disk" 1 "$states"
    row 1 gpt2 bf16 2x1024 2 "states on the host" 1 "$host" ', "device_memory": 3000000000'
    row 1 llama bf16 4x512 3 "states and parameters on disk" 1 "$all"
    row 2 gpt2 bf16 2x1024 0
    row 2 gpt2 bf16 2x1024 1
    row 2 gpt2 bf16 2x512 2
    row 2 gpt2 bf16 1x256 2
    row 2 gpt2 bf16 2x1024 3 "full recompute" 1 '' "$(recompute full)"
    row 2 gpt2 bf16 1x512 3 "2 micro-batches" 2
    row 2 gpt2 fp32 1x256 2
    row 2 gpt2 fp16 1x256 1
    row 2 llama bf16 2x512 3
    row 2 llama bf16 1x1024 1
    row 2 llama fp32 1x512 3
    row 2 gpt2 bf16 2x1024 2 "states on disk" 1 "$states"
    row 4 gpt2 bf16 1x512 2
    row 4 gpt2 bf16 1x256 3
    row 4 llama bf16 1x512 0
    row 4 llama bf16 1x512 3
    row 4 llama fp32 1x256 1
}

if [ "$list" = mesh ]; then meshes; else plain; fi
echo "within 20 %: $within of $rows ($restless of them on a machine that was not as profiled; $repeated runs were repeated)"
