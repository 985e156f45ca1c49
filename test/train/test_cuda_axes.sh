#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# ds_train --accelerator cuda where ranks share experts, a vocabulary or a sequence, on stand-ins of the driver, cuBLASLt and NCCL:
# cpu's losses on one rank, one result in every order. Usage: test_cuda_axes.sh BUILD
set -euo pipefail
build=$(cd "$1" && pwd)
data=text.txt
length=24
# shellcheck source=test/common/train_runs.sh
. "$DS_SOURCE_DIR/test/common/train_runs.sh"
awk 'BEGIN {for (i = 0; i < 400; ++i) printf "%d and %d make %d. ", i % 17, i % 5, i % 17 + i % 5}' > text.txt
sizes='"vocab_size": 257, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
 "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": false'
cat > mixtral.json << END
{"model_type": "mixtral", $sizes, "intermediate_size": 24, "num_local_experts": 4, "num_experts_per_tok": 2,
 "output_router_logits": true, "router_aux_loss_coef": 0.02}
END
cat > qwen2_moe.json << END
{"model_type": "qwen2_moe", $sizes, "intermediate_size": 40, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24,
 "num_experts": 4, "num_experts_per_tok": 2, "decoder_sparse_step": 1, "norm_topk_prob": false, "output_router_logits": true,
 "router_aux_loss_coef": 0.02}
END
cat > llama.json << END
{"model_type": "llama", $sizes, "intermediate_size": 40}
END
share() { # FILE STAGE KEYS
    config "$1.json" "\"train_micro_batch_size_per_gpu\": 4, \"zero_optimization\": {\"stage\": $2} $3"
}
run() { # MODEL NAME KEYS: one rank on cpu, two that share on cuda
    local model=$1 name=$2 keys=$3 n
    share one 0 ''
    [ -d "cpu.$model" ] || train 1 one.json "cpu.$model" --model_config "$model.json" --steps 2 || fail "$model on cpu" "cpu.$model.log"
    for n in 0 3; do
        share "$name$n" "$n" "$keys"
        on_cuda "$n" 2 "$name$n.json" "$name$n.$model" --model_config "$model.json" --steps 2 || fail "$model, $name, ZeRO $n" "$name$n.$model.log"
        near "cpu.$model" "$name$n.$model" ||
            fail "$model, $name, ZeRO $n: $(losses "$name$n.$model" | tr '\n' ' '), on cpu $(losses "cpu.$model" | tr '\n' ' ')"
    done
}
same() { # MODEL NAME
    [ "$(weights "${2}0.$1")" = "$(weights "${2}3.$1")" ] || fail "$1, $2: ZeRO 3 gives other weights"
}
run mixtral experts ', "expert_parallel": {"enabled": true, "autoep_size": 2}'
run qwen2_moe experts ', "expert_parallel": {"enabled": true, "autoep_size": 2}'
same mixtral experts
same qwen2_moe experts
run llama vocabulary ', "tensor_parallel": {"autotp_size": 2}'
same llama vocabulary
# Two ranks that share sequences accumulate two micro-batches, which stages 0 and 1 add before they reduce unless "deterministic" (LAW 4).
run llama ring ', "deterministic": true, "sequence_parallel_size": 2, "sequence_parallel": {"attention": "ring"}'
same llama ring
on_cuda 5 2 ring0.json again --model_config llama.json --steps 2 || fail "ring again" again.log
[ "$(weights again)" = "$(weights ring0.llama)" ] || fail "llama, ring: another order gives other weights"
echo "cuda where ranks share: cpu's losses"
