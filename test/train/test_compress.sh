#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# compression_training in ds_train: every technique at once gives the same weights, states and masks whatever the ZeRO stage,
# threads, recomputation and offload, and when it is saved and resumed; and says what it cannot do. Usage: test_compress.sh BUILD
set -euo pipefail
build=$1
scratch=$(mktemp -d)
[ -n "${KEEP:-}" ] || trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
fail() { echo "FAIL: $*" >&2; exit 1; }

cat > model.json << 'END'
{"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":64,"intermediate_size":128,"num_hidden_layers":2,
 "num_attention_heads":4,"num_key_value_heads":2,"vocab_size":256,"max_position_embeddings":128,"rms_norm_eps":1e-5,
 "tie_word_embeddings":false}
END
for i in $(seq 60); do echo "the quick brown fox number $i jumps over the lazy dog and what is more it counts to $((i * i))"; done > data.txt

groups='"weight_quantization":{"shared_parameters":{"enabled":true,"quantize_groups":4,"schedule_offset":1,"rounding":"stochastic",
    "fp16_mixed_quantize":{"enabled":true,"quantize_change_ratio":0.2}},
  "different_groups":{"wq1":{"params":{"start_bits":8,"target_bits":4,"quantization_period":1},"modules":["self_attn","embed_tokens"]}}},
 "sparse_pruning":{"shared_parameters":{"enabled":true,"method":"l1","schedule_offset":1},
  "different_groups":{"sp1":{"params":{"dense_ratio":0.5},"modules":["mlp.up_proj"]}}},
 "row_pruning":{"shared_parameters":{"enabled":true,"method":"topk","schedule_offset":2},
  "different_groups":{"rp1":{"params":{"dense_ratio":0.5},"modules":["mlp.gate_proj"]}}},
 "head_pruning":{"shared_parameters":{"enabled":true,"method":"topk","num_heads":4,"schedule_offset":1},
  "different_groups":{"hp1":{"params":{"dense_ratio":0.5},"modules":["o_proj"]}}},
 "activation_quantization":{"shared_parameters":{"enabled":true,"schedule_offset":3},
  "different_groups":{"aq1":{"params":{"bits":8},"modules":["mlp"]}}}'
config() { # name, more keys
    echo "{\"train_micro_batch_size_per_gpu\":2, \"optimizer\":{\"type\":\"AdamW\",\"params\":{\"lr\":5e-3}}, $2 \"compression_training\":{$groups}}" > "$1.json"
}
# The states of a run's last checkpoint, as a digest that no topology changes.
run() { # name, ranks, flags …
    local name=$1 ranks=$2
    shift 2
    if [ "$ranks" -gt 1 ]; then
        "$build/deepspeed" --num_gpus "$ranks" "$build/ds_train" --model_config model.json --tokenizer bytes --data data.txt \
            --seq_length 32 --deepspeed_config "$name.json" "$@" > "$name.log" 2>&1 || { cat "$name.log"; fail "$name"; }
    else
        "$build/ds_train" --model_config model.json --tokenizer bytes --data data.txt --seq_length 32 --deepspeed_config "$name.json" \
            "$@" > "$name.log" 2>&1 || { cat "$name.log"; fail "$name"; }
    fi
}
# A digest of weights, states, scores and masks that no topology changes.
states() {
    "$build/ds_checkpoint" consolidate "$1" "$1.one" > /dev/null 2>&1 || fail "no checkpoint in $1"
    cat "$1.one"/*/ds_shard_*.safetensors | sha256sum
}
same() { [ "$(states "$1.out")" = "$want" ] || fail "$1 gives other weights or states than stage 0"; }

for stage in 0 1 2 3; do
    config "z$stage" "\"bf16\":{\"enabled\":true}, \"zero_optimization\":{\"stage\":$stage,\"stage3_param_persistence_threshold\":100,\"reduce_bucket_size\":5000},"
    run "z$stage" 2 --max_steps 6 --output "z$stage.out" --threads $((stage % 2 + 1))
done
want=$(states z0.out)
for stage in 1 2 3; do
    same "z$stage"
done

config recompute '"bf16":{"enabled":true}, "activation_checkpointing":{"recompute":"full"}, "zero_optimization":{"stage":3,"stage3_param_persistence_threshold":100},'
run recompute 2 --max_steps 6 --output recompute.out
same recompute
mkdir disk
config offload "\"bf16\":{\"enabled\":true}, \"zero_optimization\":{\"stage\":3,\"stage3_param_persistence_threshold\":100,
  \"offload_param\":{\"device\":\"nvme\",\"nvme_path\":\"$scratch/disk\"},\"offload_optimizer\":{\"device\":\"nvme\",\"nvme_path\":\"$scratch/disk\"}},"
run offload 2 --max_steps 6 --output offload.out
same offload

# Six steps against three, saved, and three more on another stage.
run z3 2 --max_steps 6 --output resumed.out --save_interval 3
rm -rf resumed.out/global_step6 && echo -n global_step3 > resumed.out/latest
run z1 2 --max_steps 6 --output resumed.out --resume
same resumed

# What is not there.
sed 's/self_attn/attention.self/; s/,"embed_tokens"//' z0.json > bert.json
if "$build/ds_train" --model_config model.json --tokenizer bytes --data data.txt --seq_length 32 --deepspeed_config bert.json --max_steps 1 \
    --output bert.out > bert.log 2>&1; then fail "a group without layers was taken"; fi
grep -q 'wq1.modules: no layer of this model is named like "attention.self"' bert.log || { cat bert.log; fail "no word of the group"; }
echo "all right"
