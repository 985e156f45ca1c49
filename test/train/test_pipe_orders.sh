#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# The schedules "interleaved" (chunks of layers), "zb-h1" (gradients of weights put off) and "zb-v" (both): tied and untied models, a model whose routers'
# losses pass stages over, ZeRO 0 to 3, with the other axes, have the bits of the same run without stages, evaluation, resume and
# recomputation included; what does not go is refused by name. Usage: test_pipe_orders.sh BUILD
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
cat > gpt2.json <<'END'
{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 256, "n_embd": 32, "n_layer": 6, "n_head": 2, "n_positions": 64}
END
cat > llama.json <<'END'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 256, "hidden_size": 32, "intermediate_size": 48,
 "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
 "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": false}
END
cat > mixtral.json <<'END'
{"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "vocab_size": 256, "hidden_size": 32, "intermediate_size": 24,
 "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
 "hidden_act": "silu", "num_local_experts": 4, "num_experts_per_tok": 2, "tie_word_embeddings": false, "output_router_logits": true,
 "router_aux_loss_coef": 0.02}
END
head -c 20000 "$DS_SOURCE_DIR/data/tinyshakespeare.txt" > text.txt
config() { # FILE, MICRO-BATCHES, STAGE OF ZERO, PIPELINE, OTHER KEYS
    cat > "$1" <<END
{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": $2, "gradient_clipping": 1.0, "deterministic": true,
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
 "zero_optimization": {"stage": $3, "stage3_param_persistence_threshold": 0}, "pipeline": {$4} ${5:-}}
END
}
train() { # RANKS, CONFIG, OUTPUT, FLAGS
    local ranks=$1 config=$2 output=$3
    shift 3
    "$build/deepspeed" --num_gpus "$ranks" "$build/ds_train" --tokenizer bytes --data text.txt --threads 1 --seq_length 32 --seed 7 \
        --lr_scheduler_type none --deepspeed_config "$config" --output "$output" --metrics "$output.jsonl" "$@" > "$output.log" 2>&1
}
numbers() { sed -nE 's/.*"((eval_)?loss":[0-9.]+).*/\1/p' "$1.jsonl"; }
weights() { # OUTPUT: the hash of its newest checkpoint's weights
    "$build/ds_checkpoint" export "$1" "$1.model" --overwrite > /dev/null
    sha256sum < "$1.model/model.safetensors"
}
same() { # A, B
    [ "$(numbers "$1" | wc -l)" -ge 2 ] || fail "$1 has no losses" "$1.log"
    [ "$(numbers "$1")" = "$(numbers "$2")" ] || fail "$2 has other losses than $1: $(numbers "$1" | tr '\n' ' ') $(numbers "$2" | tr '\n' ' ')"
    [ "$(weights "$1")" = "$(weights "$2")" ] || fail "$2 has other weights than $1"
}
case_is() { # NAME, MODEL, RANKS, STAGES, MICRO-BATCHES, STAGE OF ZERO, PIPELINE, OTHER KEYS, FLAGS
    local name=$1 model=$2 ranks=$3 stages=$4 micro=$5 zero=$6 pipeline=$7 keys=${8:-}
    shift $(($# > 8 ? 8 : $#))
    config "$name.json" "$micro" "$zero" "\"stages\": $stages, $pipeline" "$keys"
    config "$name-one.json" "$micro" "$zero" "\"stages\": 1" "$keys"
    train "$ranks" "$name.json" "$name" --model_config "$model.json" --steps 3 "$@" || fail "$name" "$name.log"
    train $((ranks / stages)) "$name-one.json" "$name-one" --model_config "$model.json" --steps 3 "$@" || fail "$name-one" "$name-one.log"
    same "$name-one" "$name"
}
v2='"schedule": "interleaved"' v3='"schedule": "interleaved", "chunks": 3'

case_is tied gpt2 2 2 4 0 "$v2" '' --eval_data text.txt --eval_interval 2
case_is tied3 gpt2 4 2 2 3 "$v3" ', "bf16": {"enabled": true}'
case_is three gpt2 3 3 6 1 "$v2" ', "activation_checkpointing": {"recompute": "full"}'
case_is llama0 llama 4 4 4 0 "$v2"
case_is llama2 llama 4 2 4 2 "$v2" ', "bf16": {"enabled": true}'
case_is tp llama 4 2 2 3 "$v2" ', "tensor_parallel": {"autotp_size": 2}'
case_is sp gpt2 4 2 4 1 "$v2" ', "sequence_parallel_size": 2'
case_is routers mixtral 2 2 4 1 "$v2" '' --eval_data text.txt --eval_interval 2
case_is targets llama 2 2 4 1 "$v2" '' --loss_average targets
case_is skips gpt2 2 2 2 0 "$v2" ', "fp16": {"enabled": true, "initial_scale_power": 24}'
grep -q 'skipped' skips.log || fail "no step was skipped" skips.log

zb='"schedule": "zb-h1"'
case_is zb_tied gpt2 2 2 4 0 "$zb" '' --eval_data text.txt --eval_interval 2
case_is zb_tied3 gpt2 6 3 5 3 "$zb" ', "bf16": {"enabled": true}'
case_is zb_four llama 4 4 6 0 "$zb" ', "activation_checkpointing": {"recompute": "full"}'
case_is zb_llama1 llama 4 2 1 1 "$zb"
case_is zb_llama2 llama 4 2 3 2 "$zb" ', "bf16": {"enabled": true}'
case_is zb_tp llama 4 2 2 3 "$zb" ', "tensor_parallel": {"autotp_size": 2}'
case_is zb_sp gpt2 4 2 4 1 "$zb" ', "sequence_parallel_size": 2'
case_is zb_routers mixtral 4 4 5 1 "$zb" '' --loss_average targets

zv='"schedule": "zb-v"'
case_is zv_tied gpt2 2 2 4 0 "$zv" '' --eval_data text.txt --eval_interval 2
case_is zv_tied3 gpt2 6 3 5 3 "$zv" ', "bf16": {"enabled": true}'
case_is zv_four llama 4 4 7 0 "$zv" ', "activation_checkpointing": {"recompute": "full"}'
case_is zv_few llama 4 4 2 1 "$zv"
case_is zv_once llama 2 2 1 2 "$zv"
case_is zv_llama2 llama 4 2 3 2 "$zv" ', "bf16": {"enabled": true}'
case_is zv_tp llama 4 2 2 3 "$zv" ', "tensor_parallel": {"autotp_size": 2}'
case_is zv_sp gpt2 4 2 4 1 "$zv" ', "sequence_parallel_size": 2'
case_is zv_routers mixtral 4 2 5 1 "$zv" '' --loss_average targets
case_is zv_skips gpt2 2 2 2 0 "$zv" ', "fp16": {"enabled": true, "initial_scale_power": 24}'
grep -q 'skipped' zv_skips.log || fail "no step was skipped" zv_skips.log

case_is by_cost mixtral 4 2 4 1 "$zv, \"partition\": \"profile\"" '' --eval_data text.txt --eval_interval 2
case_is by_cost_tied gpt2 3 3 4 2 '"partition": "profile"' '' --eval_data text.txt --eval_interval 2

refused() { # WHAT IS SAID, RANKS, MICRO-BATCHES, PIPELINE, MODEL
    config bad.json "$3" 0 "$4"
    ! train "$2" bad.json bad --overwrite --steps 1 --model_config "$5.json" || fail "accepted: $1" bad.log
    grep -q -- "$1" bad.log || fail "not said: $1" bad.log
}
refused '3 micro-batches a step are no multiple of pipeline.stages 2; set gradient_accumulation_steps to 2' 2 3 "\"stages\": 2, $v2" gpt2
refused 'expected 2 to 8 with "interleaved", found 1' 2 4 "\"stages\": 2, $v2, \"chunks\": 1" gpt2
refused 'expected 1 with a schedule that is not "interleaved", found 2' 2 4 '"stages": 2, "chunks": 2' gpt2
refused 'pipeline.stages (times chunks) is 8, but the model has 6 layers' 2 4 '"stages": 2, "schedule": "interleaved", "chunks": 4' gpt2
refused 'expected 2 with "zb-v"' 2 4 "\"stages\": 2, $zv, \"chunks\": 3" gpt2
refused 'pipeline.stages (times chunks) is 8, but the model has 6 layers' 4 4 "\"stages\": 4, $zv" gpt2
refused 'no layer is of "type:blocks"' 2 4 '"stages": 2, "partition": "type:blocks"' gpt2
