#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# A checkpoint is resumed by the model that it was saved from, and by the configuration that a run keeps: what differs is
# named, with both values, and nothing of the output is touched. What may change does, with a notice. Usage: test_resume_differs.sh BUILD
set -euo pipefail
build=$1
. "$DS_SOURCE_DIR/test/common/tiny_llama.sh" 2 32 4 256
cat > ds.json <<'JSON'
{"train_batch_size": 4, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.95]}}, "gradient_clipping": 1.0,
 "zero_optimization": {"stage": 1}}
JSON
seq 1 4000 > data.txt
train() { # MODEL CONFIG FLAGS…
    "$build/ds_train" --model_config "$1" --deepspeed_config "$2" --tokenizer bytes --data data.txt --seq_length 32 --threads 1 "${@:3}" > log 2>&1
}
train llama.json ds.json --steps 2 --output first || fail "the first run"

# refuses WHAT MODEL CONFIG FLAGS…: the second run must end with an error that has WHAT, and leave the output as it was
refuses() {
    local before
    rm -rf out
    cp -r first out
    before=$(find out -type f -exec md5sum {} + | sort)
    ! train "${@:2}" --steps 4 --output out --resume || fail "$1: it was resumed"
    grep -qF -- "$1" log || fail "no \"$1\""
    [ "$before" = "$(find out -type f ! -name '.*lock*' -exec md5sum {} + | sort)" ] || fail "$1: the output was changed"
}
# may NOTICE MODEL CONFIG FLAGS…
may() {
    rm -rf out
    cp -r first out
    train "${@:2}" --steps 4 --output out --resume || fail "$1: it was not resumed"
    [ -z "$1" ] || grep -qF -- "$1" log || fail "no notice of \"$1\""
}
model() { sed "$1" llama.json > other.json; }
config() { sed "$1" ds.json > other_ds.json; }

may "" llama.json ds.json
may 'the run was saved with --steps 2; from here on it is 4' llama.json ds.json
may 'the run was saved with --save_interval 0; from here on it is 1' llama.json ds.json --save_interval 1
refuses 'other than then: --eval_fraction' llama.json ds.json --eval_fraction 0.25
model 's/1e-5/1e-6/'; refuses 'it had "rms_norm_eps: ' other.json ds.json
model 's/10000.0/500000.0/'; refuses 'it had "rope_theta: 10000", this run has "rope_theta: 500000"' other.json ds.json
model 's/"num_attention_heads": 4/"num_attention_heads": 8/; s/"num_key_value_heads": 4/"num_key_value_heads": 8/'
refuses 'it had "num_attention_heads: 4", this run has "num_attention_heads: 8"' other.json ds.json
model 's/"rope_theta": 10000.0/"rope_scaling": {"rope_type": "linear", "factor": 2.0}/'; refuses 'it had "rope_type: default"' other.json ds.json
model 's/"max_position_embeddings": 256/"max_position_embeddings": 512/'; refuses 'max_position_embeddings: 256' other.json ds.json
# the same constants in another layout are the same model
model 's/"rope_theta": 10000.0/"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}/'; may "" other.json ds.json

config 's/0.95/0.999/'; refuses 'optimizer.params.betas [0.9,0.95]' llama.json other_ds.json
config 's/"gradient_clipping": 1.0/"gradient_clipping": 2.0/'; refuses 'was saved with gradient_clipping 1' llama.json other_ds.json
config 's/"gradient_clipping": 1.0/"bf16": {"enabled": true}, "gradient_clipping": 1.0/'; refuses 'bf16.enabled false, this run has true' llama.json other_ds.json
config 's/"AdamW"/"Lion"/'; refuses 'optimizer' llama.json other_ds.json
refuses 'frozen parameters' llama.json ds.json --freeze '*norm*'
config 's/"stage": 1/"stage": 1, "sub_group_size": 1000/; s/"zero_optimization"/"deterministic": true, "zero_optimization"/'
may 'deterministic' llama.json other_ds.json
config 's/"zero_optimization"/"mlp_tile_tokens": 4, "zero_optimization"/' # sums of weight gradients in another order
may 'mlp_tile_tokens 0; from here on it is 4' llama.json other_ds.json
config 's/"gradient_clipping"/"communication_data_type": "fp16", "gradient_clipping"/'
refuses 'communication_data_type null, this run has "fp16"' llama.json other_ds.json
config 's/1e-3/2e-3/'; may 'optimizer.params.lr 0.001' llama.json other_ds.json
config 's/"stage": 1/"stage": 2/'; may 'zero_optimization.stage 1' llama.json other_ds.json
config 's/"stage": 1/"stage": 1, "offload_optimizer": {"device": "cpu"}/'
may 'offload_optimizer.device "none"; from here on it is "cpu"' llama.json other_ds.json
config 's/"train_batch_size": 4/"train_batch_size": 8/'; may 'train_batch_size 4' llama.json other_ds.json
config 's/"stage": 1/"stage": 1, "reduce_bucket_size": 1000/'; may '' llama.json other_ds.json
config 's/"gradient_clipping"/"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}}, "gradient_clipping"/'
may 'scheduler.type "linear"; from here on it is "WarmupLR"' llama.json other_ds.json
cp other_ds.json with.json
cp -r first before
rm -rf first && train llama.json with.json --steps 2 --output first || fail "a run with a schedule"
sed 's/"warmup_num_steps": 10/"warmup_num_steps": 10, "warmup_max_lr": 0.5/' with.json > other_ds.json
may 'scheduler.params.warmup_max_lr null; from here on it is 0.5' llama.json other_ds.json
rm -rf first && mv before first
# Frozen parameters stay frozen, without moments too; data that differs in one letter is other data.
config 's/"AdamW", "params": {"lr": 1e-3, "betas": \[0.9, 0.95\]}/"SGD", "params": {"lr": 1e-3}/; s/"stage": 1/"stage": 0/'
rm -rf first && train llama.json other_ds.json --steps 2 --output first --freeze '*norm*' || fail "a run with frozen parameters"
refuses 'frozen, this run has it trained' llama.json other_ds.json
may "" llama.json other_ds.json --freeze '*norm*'
sed -i '2000s/2/3/' data.txt
refuses 'is of other data' llama.json other_ds.json --freeze '*norm*'
"$build/ds_data" tokenize data.txt --tokenizer bytes --output packed > log 2>&1 || fail "tokenize"
rm -rf first && "$build/ds_train" --model_config llama.json --deepspeed_config ds.json --tokenizer bytes --data packed.bin --seq_length 32 --threads 1 \
    --steps 2 --output first > log 2>&1 || fail "indexed data"
printf 'x' | dd of=packed.bin bs=1 seek=9001 conv=notrunc 2> /dev/null
! "$build/ds_train" --model_config llama.json --deepspeed_config ds.json --tokenizer bytes --data packed.bin --seq_length 32 --threads 1 \
    --steps 4 --output first --resume > log 2>&1 || fail "other indexed data"
grep -q 'is of other data' log || fail "other indexed data"
rm -rf foreign && mkdir -p foreign/global_step2 && echo theirs > foreign/global_step2/mp_rank_00_model_states.pt
! train llama.json ds.json --steps 2 --output foreign || fail "a folder of others was replaced"
grep -q 'global_step2, which is no checkpoint of this program' log && [ -f foreign/global_step2/mp_rank_00_model_states.pt ] || fail "foreign"
echo "resumes that differ are named"
