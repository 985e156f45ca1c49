#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Pipelines by configuration: models trained on 2 and 4 stages have the bits of one stage, over ZeRO stages, with data, tensor and sequence
# parallelism, evaluation, recomputation, skipped steps and resumes on other stages; what does not go with them is refused by name; a rank that
# dies is named. Usage: test_pipe_cli.sh BUILD
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
{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 256, "n_embd": 32, "n_layer": 4, "n_head": 2, "n_positions": 64}
END
cat > llama.json <<'END'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 256, "hidden_size": 32, "intermediate_size": 48,
 "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
 "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": false}
END
cat > mixtral.json <<'END'
{"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "vocab_size": 256, "hidden_size": 32, "intermediate_size": 24,
 "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
 "hidden_act": "silu", "num_local_experts": 4, "num_experts_per_tok": 2, "tie_word_embeddings": false}
END
head -c 20000 "$DS_SOURCE_DIR/data/tinyshakespeare.txt" > text.txt
echo '{"prompt": "a", "chosen": "bc", "rejected": "d"}' > rows.jsonl
config() { # FILE, MICRO-BATCH, STAGES OF ZERO, OF THE PIPELINE, OTHER KEYS, OF ZERO
    cat > "$1" <<END
{"train_batch_size": 8, "train_micro_batch_size_per_gpu": $2, "gradient_clipping": 1.0, "deterministic": true,
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
 "zero_optimization": {"stage": $3, "stage3_param_persistence_threshold": 0 ${6:-}}, "pipeline": {"stages": $4} ${5:-}}
END
}
train() { # RANKS, CONFIG, OUTPUT, FLAGS
    local ranks=$1 config=$2 output=$3
    shift 3
    "$build/deepspeed" --num_gpus "$ranks" "$build/ds_train" --tokenizer bytes --data "${DATA:-text.txt}" --threads 1 --seq_length 32 --seed 7 \
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
case_is() { # NAME, MODEL, RANKS, MICRO-BATCH, STAGES OF ZERO, OF THE PIPELINE, OTHER KEYS, FLAGS: against the same without a pipeline
    local name=$1 model=$2 ranks=$3 micro=$4 zero=$5 stages=$6 keys=${7:-}
    shift $(($# > 7 ? 7 : $#))
    config "$name.json" "$micro" "$zero" "$stages" "$keys" "${ZERO:-}"
    config "$name-one.json" "$micro" "$zero" 1 "$keys" "${ZERO:-}"
    train "$ranks" "$name.json" "$name" --model_config "$model.json" --steps 3 "$@" || fail "$name" "$name.log"
    train $((ranks / stages)) "$name-one.json" "$name-one" --model_config "$model.json" --steps 3 "$@" || fail "$name-one" "$name-one.log"
    same "$name-one" "$name"
}

case_is tied gpt2 2 2 0 2
case_is tied3 gpt2 4 2 3 2
case_is four gpt2 4 1 0 4 ', "bf16": {"enabled": true}'
case_is five llama 5 1 0 5
case_is llama1 llama 4 1 1 2
case_is llama2 llama 4 1 2 2 ', "bf16": {"enabled": true}, "activation_checkpointing": {"recompute": "full"}' \
    --eval_data text.txt --eval_interval 2
case_is tp llama 4 1 3 2 ', "tensor_parallel": {"autotp_size": 2}'
case_is sp gpt2 4 1 1 2 ', "sequence_parallel_size": 2'
case_is ep mixtral 4 1 3 2 ', "expert_parallel": {"enabled": true, "autoep_size": 2}'
# a stage without a trainable parameter
case_is frozen llama 4 1 3 2 '' --freeze 'model.layers.0.*' --freeze 'model.layers.1.*' --freeze 'model.layers.2.*' --freeze 'model.embed*'
# each rank's trace is by its own plan; stages make collectives of their own
case_is logged llama 4 1 1 2 ', "comms_logger": {"enabled": true}'
train 4 logged.json logged2 --model_config llama.json --steps 3 --trace trace.json || fail "a trace" logged2.log
python3 - trace.json <<'END' || fail "a trace of stages"
import json, sys
last = {e["pid"] for e in json.load(open(sys.argv[1]))["traceEvents"] if "layers.4" in json.dumps(e)}
first = {e["pid"] for e in json.load(open(sys.argv[1]))["traceEvents"] if "layers.0" in json.dumps(e)}
sys.exit(not (len(last) == len(first) == 2 and not last & first))
END
grep -q "no straggler effect: stages" logged.log || fail "the log of collectives" logged.log
case_is skips gpt2 2 1 0 2 ', "fp16": {"enabled": true, "initial_scale_power": 24}'
grep -q 'skipped' skips.log || fail "no step was skipped" skips.log

away='{"device": "nvme", "nvme_path": "'$scratch'"}'
ZERO=', "offload_optimizer": '$away', "offload_param": '$away case_is nvme gpt2 4 1 3 2
grep -q 'MiB on disk in' nvme.log || fail "nothing is on disk" nvme.log

# the other order of micro-batches has the same bits
sed 's/"stages": 4/"stages": 4, "schedule": "gpipe", "partition": "uniform"/' four.json > gpipe.json
train 4 gpipe.json gpipe --model_config gpt2.json --steps 3 || fail "gpipe" gpipe.log
same four gpipe

# goes on elsewhere
for stages in 1 2 4; do config on$stages.json 2 1 $stages; done
train 1 on1.json whole --model_config gpt2.json --steps 4 || fail "four steps" whole.log
for pair in "1 2" "2 1" "2 4" "4 2"; do
    from=${pair% *} to=${pair#* }
    train "$from" "on$from.json" "moved$from$to" --model_config gpt2.json --steps 2 || fail "two steps" "moved$from$to.log"
    train "$to" "on$to.json" "moved$from$to" --model_config gpt2.json --steps 4 --resume || fail "resumed" "moved$from$to.log"
    grep -q "saved with pipeline.stages $from; from here on it is $to" "moved$from$to.log" || fail "no notice" "moved$from$to.log"
    same whole "moved$from$to"
done

# the program, as text
train 2 on2.json text --model_config gpt2.json --steps 1 --print_plan > /dev/null || fail "--print_plan" text.log
grep -q 'send  pipe/train/0 to stage 1, slot 0' text.log || fail "the program does not send" text.log

refused() { # WHAT IS SAID, RANKS, CONFIG, FLAGS
    local said=$1
    shift
    ! train "$1" "$2" bad --overwrite --steps 1 "${@:3}" || fail "accepted: $said" bad.log
    grep -q -- "$said" bad.log || fail "not said: $said" bad.log
}
config bad.json 1 2 1 ', "fp16": {"enabled": true}' ', "zero_quantized_gradients": true, "zeropp_loco_param": {"err_beta": 0.8, "reset_T": 8}'
refused 'averaged over targets is not built with zero_optimization.zeropp_loco_param and fp16' 2 bad.json --model_config gpt2.json --loss_average targets
config bad.json 1 0 3
refused 'pipeline.stages: expected a divisor of the world size, 4, found 3' 4 bad.json --model_config gpt2.json
config bad.json 1 0 8
refused 'pipeline.stages (times chunks) is 8, but the model has 4 layers' 8 bad.json --model_config gpt2.json
config bad.json 1 0 2 ', "flops_profiler": {"enabled": true}'
refused 'pipeline.stages: expected 1 with flops_profiler, found 2' 2 bad.json --model_config gpt2.json
config bad.json 1 0 2
sed -i 's/"stages": 2/"stages": 2, "partition": "type:linear"/' bad.json
refused 'pipeline.partition: no layer is of "type:linear": it is searched in ParallelTransformerLayerPipe' 2 bad.json --model_config gpt2.json
sed -i 's/type:linear/type:(/' bad.json
refused 'pipeline.partition: "type:(" is no regular expression that is known' 2 bad.json --model_config gpt2.json
config bad.json 1 0 2
sed -i 's/AdamW/OneBitAdam/' bad.json
refused 'pipeline.stages: expected 1 with OneBitAdam, found 2' 2 bad.json --model_config gpt2.json

config bad.json 1 0 2
DATA=rows.jsonl refused 'pipeline.stages 2 with the preference loss "orpo"' 2 bad.json --model_config gpt2.json --objective orpo

# a stage that dies is named, with its coordinates
config long.json 1 0 2
train 4 long.json dies --model_config gpt2.json --steps 1000000 --save_interval 2 &
job=$!
for ((i = 0; i < 300; ++i)); do
    [ ! -e dies/latest ] || break
    sleep 0.1
done
for pid in $(pgrep -f "ds_train.* --output dies "); do
    [ "$(readlink "/proc/$pid/cwd")" = "$scratch" ] || continue
    ! tr '\0' '\n' < "/proc/$pid/environ" 2> /dev/null | grep -qx "RANK=3" || kill -KILL "$pid"
done
! wait "$job" || fail "a rank was killed and the job went on" dies.log
grep -q 'rank 3 (dp 1, pp 1) on .* was killed by SIGKILL' dies.log || fail "no coordinates at once" dies.log
grep -q 'who  *rank 3 (dp 1, pp 1), process' dies.log || fail "no coordinates in the report" dies.log
echo "pipelines: passed"
