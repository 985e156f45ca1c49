#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# 1-bit Adam, LAMB and 0/1 Adam over the step at which signs begin to be exchanged: the same weights and states whatever the transport, threads, overlap, bucket,
# recomputation, and when a run is saved (before and behind that step) and resumed. Usage: test_onebit_bits.sh BUILD
set -euo pipefail
build=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE DS_RESTART_COUNT
fail() { echo "FAILED: $*"; exit 1; }

run() { # WORDS: prints the hash line
    local launcher=()
    case "$*" in *transport=shm*) launcher=("$build/deepspeed" --num_gpus "$(sed -E 's/.*ranks=([0-9]+).*/\1/' <<< "$*")") ;; esac
    rm -rf "$scratch/save"
    # shellcheck disable=SC2086
    "${launcher[@]}" "$build/zero_row" steps=6 $* save="$scratch/save" < /dev/null | grep -o 'hash [0-9a-f]*'
}

# A group, and what changes no bit of it; with other steps, of the group with as many.
n=0
while IFS='|' read -r group changes; do
    want=$(run "$group")
    [ -n "$want" ] || fail "$group: no result"
    while IFS= read -r -d ';' change; do
        base=$want
        case $change in steps=*) base=$(run "$group ${change%% *}") ;; esac
        got=$(run "$group $change") || fail "$group $change: no result"
        [ "$got" = "$base" ] || fail "$group $change: $got, expected $base"
        n=$((n + 1))
    done <<< "$changes"
done << 'END'
optimizer=onebitadam model=gpt2 dtype=f32 ranks=2|threads=4;overlap=1;bucket=1000;transport=shm;recompute=full;resume=1;resume=2;steps=4 resume=1;
optimizer=onebitadam model=gpt2 dtype=f16 ranks=4 accumulation=2|transport=shm threads=2 overlap=1 bucket=20000 resume=1;
optimizer=onebitlamb model=llama dtype=bf16 ranks=3|overlap=1 bucket=1000;transport=shm threads=2 resume=1;
optimizer=zerooneadam model=gpt2 dtype=bf16 ranks=2|threads=4 overlap=1;transport=shm bucket=1000;resume=1;steps=10 resume=2;
END
[ "$(run optimizer=onebitadam model=gpt2 dtype=f32 ranks=2)" != "$("$build/zero_row" model=gpt2 steps=6 | grep -o 'hash [0-9a-f]*')" ] || fail "1-bit Adam is Adam"
# What is carried: five all-reduces in fp32, then a bit an element there and one a slice back.
cat > "$scratch/llama.json" <<'JSON'
{"model_type": "llama", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
 "num_key_value_heads": 4, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}
JSON
cat > "$scratch/ds.json" <<'JSON'
{"train_micro_batch_size_per_gpu": 2, "comms_logger": {"enabled": true}, "gradient_clipping": 1.0, "optimizer": {"type": "OneBitAdam", "params":
 {"lr": 1e-3, "freeze_step": 5, "cuda_aware": false, "comm_backend_name": "nccl", "weight_decay": 0.01}}}
JSON
for _ in $(seq 400); do echo "the quick brown fox jumps over the lazy dog"; done > "$scratch/text.txt"
train() { # RANKS WORDS
    local ranks=$1
    shift
    "$build/deepspeed" --num_gpus "$ranks" "$build/ds_train" --model_config "$scratch/llama.json" --tokenizer bytes --data "$scratch/text.txt" \
        --seq_length 32 --deepspeed_config "$scratch/ds.json" --output "$scratch/out" "$@" > "$scratch/log" 2>&1 || { cat "$scratch/log"; fail "$*"; }
}
carries() { # OP SIZE UNIT TIMES, in the first table
    awk -v want="$*" '/Breakdown/ {exit} $1 ~ /^[a-z_]+$/ {now = $1} now " " $1 " " $2 " " $3 == want {found = 1} END {exit !found}' "$scratch/log" ||
        { cat "$scratch/log"; fail "not carried: $*"; }
}
train 2 --max_steps 12
carries all_reduce 481.25 KB 5
carries all_to_all 15.04 KB 7
carries all_gather 7.52 KB 7
train 3 --max_steps 14 --resume
grep -q "what their signs have lost starts at zero" "$scratch/log" || { cat "$scratch/log"; fail "no notice of other ranks"; }
echo "$n runs, the same bits in each group"
