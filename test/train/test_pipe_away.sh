#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Pipelines whose activations wait in host memory or on disk, each micro-batch's in a place of its own: the bits of one rank, in every
# order of micro-batches, beside ZeRO 3 with everything away, chunks of sequences and evaluation; the plan counts a place for each.
# Usage: test_pipe_away.sh BUILD
set -euo pipefail
build=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
fail() {
    echo "FAIL: $1"
    [ ! -e "${2:-}" ] || tail -n 20 "$2"
    exit 1
}
cat > model.json <<'END'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 256, "hidden_size": 64, "intermediate_size": 96,
 "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
 "hidden_act": "silu", "tie_word_embeddings": true}
END
head -c 20000 "$DS_SOURCE_DIR/data/tinyshakespeare.txt" > text.txt
config() { # FILE, STAGES, KEYS OF THE PIPELINE, OTHER KEYS, STAGE OF ZERO WITH KEYS
    cat > "$1" <<END
{"train_batch_size": 24, "train_micro_batch_size_per_gpu": 4, "gradient_clipping": 1.0, "deterministic": true,
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "zero_optimization": {"stage": ${5:-0}},
 "pipeline": {"stages": $2${3:+, $3}}${4:+, $4}}
END
}
train() { # RANKS, CONFIG, OUTPUT, FLAGS
    local ranks=$1 config=$2 output=$3
    shift 3
    "$build/deepspeed" --num_gpus "$ranks" "$build/ds_train" --tokenizer bytes --data text.txt --threads 1 --seq_length 128 --seed 7 --steps 2 \
        --lr_scheduler_type none --model_config model.json --deepspeed_config "$config" --output "$output" --metrics "$output.jsonl" \
        --eval_data text.txt --eval_interval 2 "$@" > "$output.log" 2>&1
}
numbers() { sed -nE 's/.*"((eval_)?loss":[0-9.]+).*/\1/p' "$1.jsonl"; }
weights() {
    "$build/ds_checkpoint" export "$1" "$1.model" --overwrite > /dev/null
    sha256sum < "$1.model/model.safetensors"
}
same() { # A, B
    [ "$(numbers "$1" | wc -l)" -ge 3 ] || fail "$1 has no losses" "$1.log"
    [ "$(numbers "$1")" = "$(numbers "$2")" ] || fail "$2 has other losses than $1: $(numbers "$1" | tr '\n' ' ') $(numbers "$2" | tr '\n' ' ')"
    [ "$(weights "$1")" = "$(weights "$2")" ] || fail "$2 has other weights than $1"
}
away() { # OUTPUT, MEGABYTES AT LEAST: something left memory, on the rank that has most micro-batches in flight
    sed -nE 's/^\[rank 0\] offloaded: ([0-9]+) MiB to disk, ([0-9]+) MiB to host.*/\1 \2/p' "$1.log" | awk -v least="$2" '{exit !($1 + $2 >= least)}' ||
        fail "$1: less than $2 MiB left memory: $(grep offloaded: "$1.log")"
}
host='"device_memory": 200000000, "activation_checkpointing": {"cpu_checkpointing": true}'
disk='"activation_checkpointing": {"nvme_path": "'$scratch'"}'

config one.json 1
train 1 one.json one || fail "one rank" one.log
for order in 1f1b gpipe zb-h1 interleaved zb-v; do
    config "$order.json" 2 '"schedule": "'$order'"' "$([ $order = gpipe ] || [ $order = zb-v ] && echo "$disk" || echo "$host")"
    train 2 "$order.json" $order || fail "$order" $order.log
    same one $order
    away $order 4
done
# two are in flight on the first of two stages, all six with gpipe
[ "$(grep -o '[0-9]* MiB to host' 1f1b.log | head -n 1 | cut -d ' ' -f 1)" -lt "$(grep -o '[0-9]* MiB to disk' gpipe.log | head -n 1 | cut -d ' ' -f 1)" ] ||
    fail "gpipe does not hold more micro-batches than 1f1b"

nvme='{"device": "nvme", "nvme_path": "'$scratch'"}'
config all.json 2 '' "$disk" '3, "stage3_param_persistence_threshold": 0, "offload_optimizer": '"$nvme"', "offload_param": '"$nvme"
train 2 all.json all || fail "ZeRO 3 with everything on disk" all.log
same one all
away all 4

# chunks of a sequence, whose keys and values wait for other chunks and for the backward phase
chunks='"device_memory": 200000000, "sequence_parallel": {"chunk_size": 64, "offload": "cpu"}'
config chunk1.json 1 '' "$chunks"
train 1 chunk1.json chunk1 || fail "chunks on one rank" chunk1.log
for order in 1f1b zb-v; do
    config "chunk-$order.json" 2 '"schedule": "'$order'"' "$chunks"
    train 2 "chunk-$order.json" "chunk-$order" || fail "chunks, $order" "chunk-$order.log"
    same chunk1 "chunk-$order"
    away "chunk-$order" 1
done
echo "pipelines with activations away: passed"
