#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# autotuning.enabled in a run: the measured steps, the file, the model's figures; and a trial of the autotuner
# leaves the user's files alone.
set -u
bin=$(realpath "$1")
work=$(mktemp -d "$1/autotune_measure.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failed=0
fail() { echo "FAILED: $*"; failed=1; }
unset DS_AUTOTUNING_TRIAL
cat > gpt.json << 'END'
{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 256, "n_positions": 32, "n_ctx": 32,
 "n_embd": 32, "n_layer": 1, "n_head": 2, "tie_word_embeddings": true}
END
yes 'all work and no play' | head -c 20000 > text.txt
# config FILE AUTOTUNING
config() {
    echo "{train_micro_batch_size_per_gpu: 2, gradient_accumulation_steps: 3,
     optimizer: {type: 'AdamW', params: {lr: 0.001}}, autotuning: $2}" > "$1"
}
train() {
    "$bin/ds_train" --model_config gpt.json --tokenizer bytes --data text.txt --seq_length 32 --threads 1 "$@" > out.txt 2>&1
}
# number FILE KEY
number() { sed -nE "s/.*\"$2\": ([-+.e0-9]+).*/\1/p" "$1"; }

config on.json '{enabled: true, start_profile_step: 2, end_profile_step: 4}'
train --steps 4 --deepspeed_config on.json || fail "a measured run: $(tail -2 out.txt)"
m=autotuning_metric.json
[ "$(number $m train_batch_size) $(number $m first_step) $(number $m last_step) $(number $m n_ranks)" = "6 2 4 1" ] ||
    fail "what was measured: $(cat $m)"
# 6 rows a step; the parts fit into the whole.
awk -v l="$(number $m latency)" -v t="$(number $m throughput)" -v f="$(number $m forward)" -v b="$(number $m backward)" \
    -v s="$(number $m step)" -v n="$(number $m memory_bytes)" -v flops="$(number $m FLOPS_per_gpu)" \
    'BEGIN { r = l * t / 6000; exit !(l > 0 && r > 0.99 && r < 1.01 && f > 0 && b > 0 && s > 0 && f + b + s < l * 1.001 && n > 1e6 && flops > 0) }' ||
    fail "figures: $(cat $m)"
[ ! -e autotuning_model_info.json ] || fail "model info that nobody asked for"
rm -f $m
train --steps 3 --deepspeed_config on.json || fail "a short run"
[ ! -e $m ] || fail "a file without its last step"

config path.json '{enabled: true, start_profile_step: 0, end_profile_step: 1, metric_path: "deep.json",
                   model_info: {profile: true}, model_info_path: "info.json"}'
train --steps 2 --deepspeed_config path.json || fail "paths"
[ "$(number deep.json first_step)" = 1 ] || fail "metric_path: $(cat deep.json)"
[ "$(number info.json num_params)" = "$(number info.json trainable_num_params)" ] &&
    [ "$(number info.json activation_mem_per_gpu)" -gt 1000 ] || fail "model_info_path: $(cat info.json)"

config bad.json '{enabled: true, end_profile_step: 3, metric_path: "no/such/folder.json"}'
train --steps 3 --deepspeed_config bad.json && fail "a folder that is not there"
grep -q 'autotuning.metric_path: cannot write in folder no/such: No such' out.txt || fail "its message: $(tail -1 out.txt)"

config off.json '{enabled: false}'
train --steps 5 --deepspeed_config off.json || fail "enabled false"
[ ! -e $m ] || fail "measured while enabled is false"

# A trial: no checkpoint, no folder, no metrics of the user's.
echo precious > metrics.jsonl
DS_AUTOTUNING_TRIAL=1 train --steps 5 --deepspeed_config on.json --output saved --save_interval 1 --metrics metrics.jsonl ||
    fail "a trial: $(tail -2 out.txt)"
[ ! -e saved ] && [ "$(cat metrics.jsonl)" = precious ] || fail "a trial wrote: $(find saved) $(head -1 metrics.jsonl)"
[ -s $m ] || fail "a trial measures"
exit $failed
