#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A rank of each axis (data, tensor, sequence, expert, pipeline) killed or stopped: named with its coordinates within ten seconds, the
# last checkpoint whole; with another configuration: named, and the key. All ranks killed while they save, TIMES times an axis (default 5): the
# run goes on from a whole checkpoint. Usage: axis_faults.sh BUILD
set -euo pipefail
build=$1
root=$(cd "$(dirname "$0")/../.." && pwd)
scratch=$(mktemp -d)
trap 'pkill -KILL -f "$scratch" 2> /dev/null || true; rm -rf "$scratch"' EXIT
export DEEPSPEED_TIMEOUT=0.0833 # minutes: five seconds
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE
cat > "$scratch/model.json" <<'END'
{"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "vocab_size": 256, "hidden_size": 64, "intermediate_size": 96,
 "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
 "hidden_act": "silu", "num_local_experts": 4, "num_experts_per_tok": 2, "tie_word_embeddings": false}
END
RANDOM=${SEED:-1}
failed=0
fail() {
    echo "FAILED: $case: $1"
    tail -n 30 "$scratch/log"
    failed=$((failed + 1))
}
config() { # AXIS LR
    local more=''
    case $1 in
    tp) more=', "tensor_parallel": {"autotp_size": 2}' ;;
    sp) more=', "sequence_parallel_size": 2' ;;
    ep) more=', "expert_parallel": {"enabled": true, "autoep_size": 2}' ;;
    pp) more=', "pipeline": {"stages": 2}' ;;
    esac
    echo "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": $2}},
        \"zero_optimization\": {\"stage\": 2}$more}"
}
words=("$build/ds_train" --model_config "$scratch/model.json" --tokenizer bytes --data "$root/data/tinyshakespeare.txt" --seq_length 64
    --steps 1000000 --output "$scratch/out" --threads 1 --report none)
start() { # FLAGS: a job in the background, with its first checkpoint
    : > "$scratch/log"
    "$build/deepspeed" --num_gpus 2 "${words[@]}" --deepspeed_config "$scratch/config.json" "$@" > "$scratch/log" 2>&1 &
    job=$!
    for ((i = 0; i < 300; ++i)); do
        [ ! -e "$scratch/out/latest" ] && kill -0 "$job" 2> /dev/null || return 0
        sleep 0.1
    done
}
ranks() { pgrep -f "ds_train.* --output $scratch/out" || true; }
rank_pid() { # RANK
    local pid
    for pid in $(ranks); do
        if tr '\0' '\n' < "/proc/$pid/environ" 2> /dev/null | grep -qx "RANK=$1"; then
            echo "$pid"
        fi
    done
}
ends() { # [NAME]: within ten seconds, with a failure that names rank 1, by its coordinates where NAME is not given
    local begin=$SECONDS code=0 name="rank 1 \\(dp 0, $axis 1\\)"
    case $axis in
    dp) name='rank 1' ;;
    ep) name='rank 1 \(dp 1, ep 1\)' ;;
    esac
    [ -z "${1:-}" ] || name=$1
    wait "$job" || code=$?
    [ "$code" -ne 0 ] || fail "the job's exit code is 0"
    [ $((SECONDS - begin)) -le 10 ] || fail "it took $((SECONDS - begin)) s to end"
    grep -qE "$name" "$scratch/log" || fail "no line with \"$name\""
    echo "$case: $(grep -oE "$name" "$scratch/log" | head -n 1), code $code, $((SECONDS - begin)) s"
}
whole() { "$build/ds_checkpoint" verify "$scratch/out" > "$scratch/verify" 2>&1 || { cat "$scratch/verify"; fail "the last checkpoint is not whole"; }; }

for axis in dp tp sp ep pp; do
    config $axis 1e-3 > "$scratch/config.json"
    for signal in KILL STOP; do
        case="$axis, SIG$signal"
        rm -rf "$scratch/out"
        start --save_interval 10
        kill -$signal "$(rank_pid 1)"
        ends
        pkill -KILL -f -- "--output $scratch/out" 2> /dev/null || true
        whole
    done
    case="$axis, another configuration"
    rm -rf "$scratch/out"
    config $axis 2e-3 > "$scratch/other.json"
    : > "$scratch/log"
    # shellcheck disable=SC2016
    "$build/deepspeed" --num_gpus 2 bash -c 'file=$1; [ "$RANK" = 0 ] || file=$2; shift 2; exec "$@" --deepspeed_config "$file"' x \
        "$scratch/config.json" "$scratch/other.json" "${words[@]}" > "$scratch/log" 2>&1 &
    job=$!
    ends 'rank 1 has another configuration' # no mesh is agreed on yet
    grep -q 'optimizer' "$scratch/log" || fail "what differs is not named"
    for ((time = 0; time < ${TIMES:-5}; ++time)); do
        case="$axis, killed while saving"
        rm -rf "$scratch/out"
        start --save_interval 1
        sleep "0.$((RANDOM % 90 + 10))"
        # shellcheck disable=SC2046
        kill -KILL $(ranks) "$job" 2> /dev/null || true
        wait "$job" 2> /dev/null || true
        whole
        "$build/deepspeed" --num_gpus 2 "${words[@]}" --deepspeed_config "$scratch/config.json" --resume > "$scratch/log" 2>&1 &
        job=$!
        for ((i = 0; i < 200; ++i)); do
            grep -qE 'step [0-9]+/' "$scratch/log" && break
            kill -0 "$job" 2> /dev/null || break
            sleep 0.1
        done
        grep -qE 'step [0-9]+/' "$scratch/log" || fail "does not go on"
        # shellcheck disable=SC2046
        kill -KILL $(ranks) "$job" 2> /dev/null || true
        wait "$job" 2> /dev/null || true
    done
    echo "$axis: ${TIMES:-5} times killed while saving"
done
[ "$failed" = 0 ] || { echo "$failed failed"; exit 1; }
