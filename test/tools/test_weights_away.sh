#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Weights on disk while a model generates: the same text by ds_generate (beams, two ranks, two stages) and ds_serve, flags
# or DeepSpeed's file; what ds_plan serve proposes fits; flags that contradict each other are refused.
# Usage: test_weights_away.sh BUILD
set -euo pipefail
build=$1
scratch=$(mktemp -d)
trap 'kill $(jobs -p) 2> /dev/null || true; rm -rf "$scratch"' EXIT
cd "$scratch"
fail() { echo "FAIL: $1"; exit 1; }
cat > config.json << 'END'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 256, "hidden_size": 384, "intermediate_size": 512,
 "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
END
for ((i = 0; i < 40; ++i)); do echo "the ship sails over the quiet sea."; done > text.txt
"$build/ds_train" --model_config config.json --tokenizer bytes --data text.txt --seq_length 32 --steps 4 --learning_rate 1e-2 \
    --output tuned > log 2>&1 || { cat log; exit 1; }
mkdir disk
away=(--offload_param nvme --nvme_path "$scratch/disk")
cat > ds.json << END
{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 100,
 "offload_param": {"device": "nvme", "nvme_path": "$scratch/disk", "max_in_cpu": 0}}, "aio": {"queue_depth": 4}}
END
text() { "$@" --model tuned --tokenizer bytes --prompt "the ship" --max_new_tokens 24 --threads 1 2> err; }
want=$(text "$build/ds_generate")
same() { # NAME, COMMAND
    local name=$1
    shift
    [ "$(text "$@")" = "$want" ] || { cat err; fail "$name: another text"; }
    grep -q "weights: .* on disk" err || fail "$name: nothing is on disk"
}
same "a file" "$build/ds_generate" --deepspeed_config ds.json
same "flags" "$build/ds_generate" "${away[@]}"
[ "$(text "$build/ds_generate" --offload_param nvme)" = "$want" ] || { cat err; fail "from the folder: another text"; }
grep -q "read from the model" err || fail "nothing is read from the folder"
beams=$(text "$build/ds_generate" --num_beams 3)
[ "$(text "$build/ds_generate" --num_beams 3 --deepspeed_config ds.json)" = "$beams" ] || fail "beams: another text"
for layout in "--pipeline_stages 1" "--pipeline_stages 2"; do
    # shellcheck disable=SC2086
    want=$(text "$build/deepspeed" --num_gpus 2 "$build/ds_generate" $layout | grep -v '^\[rank')
    # shellcheck disable=SC2086
    got=$(text "$build/deepspeed" --num_gpus 2 "$build/ds_generate" $layout --deepspeed_config ds.json | grep -v '^\[rank')
    [ -n "$want" ] && [ "$got" = "$want" ] || fail "two ranks, $layout: another text"
done

refused() { # WORDS, FLAGS
    local words=$1
    shift
    if text "$build/ds_generate" "$@" > /dev/null; then fail "$* was taken"; fi
    grep -q -- "$words" err || { cat err; fail "$*: not the words $words"; }
}
refused "go with --offload_param" --nvme_path disk
refused "leave --offload_param" --deepspeed_config ds.json "${away[@]}"
refused "leave --offload_param" --deepspeed_config ds.json --max_in_cpu 0
refused "nvme_path goes with --offload_param nvme" --offload_param cpu --nvme_path disk
refused "max_in_cpu goes with --offload_param nvme" --offload_param cpu --max_in_cpu 5
text "$build/ds_generate" --offload_param cpu > /dev/null && grep -q "moves nothing" err || fail "what moves nothing is said"
if [ -x "$build/ds_serve" ]; then
    "$build/ds_serve" --model tuned --port 0 --offload_kv --deepspeed_config <(sed 's/"nvme"/"none"/' ds.json) 2> err && fail "keys and values go nowhere"
    grep -q offload_kv err || { cat err; fail "not the word offload_kv"; }
fi
refused "nowhere" --offload_param nvme --nvme_path "$scratch/nowhere" --max_in_cpu 0 
refused "offload_param" --deepspeed_config <(sed 's/"nvme"/"tape"/' ds.json)

# A model that does not fit gets flags with which it does, and they are right.
sed -i 's/"hidden_size": 384/"hidden_size": 1024/; s/"intermediate_size": 512/"intermediate_size": 4096/; s/layers": 3/layers": 12/' config.json
plan() { "$build/ds_plan" serve --model_config config.json --dtype bf16 --threads 1 --memory 200MiB "$@"; }
if plan > plan.log; then fail "it fits"; fi
flags=$(sed -n 's/.*would fit with \(--offload_param .*\): .*/\1/p' plan.log)
[ -n "$flags" ] || { cat plan.log; fail "no proposal"; }
# shellcheck disable=SC2086
plan $flags > fits.log || { cat fits.log; fail "the proposal does not fit"; }
grep -q "  elsewhere " fits.log || fail "nothing is elsewhere"
kept=${flags##* }
# shellcheck disable=SC2086
if plan ${flags% *} $((kept + 100000000)) > /dev/null; then fail "far more stays and it fits"; fi
echo "PASS"
