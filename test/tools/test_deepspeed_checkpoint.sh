#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A checkpoint of DeepSpeed for Python in the tools: listed, shown, verified, converted, its fp32 weights written, trained on.
set -u
bin=$(cd "$1" && pwd)
. "$(dirname "$0")/../common/tool_check.sh"
golden=$DS_SOURCE_DIR/test/golden/deepspeed
cd "$dir" || exit 1
for form in zero1 zero2 zero3 bf16 universal2 universal3; do
    tar -xzf "$golden/$form.tar.gz" || exit 1
    check "list $form" 0 'whole +global_step3[a-z_]* +\(latest\) of DeepSpeed for Python' "$bin/ds_checkpoint" list $form
    check "inspect $form" 0 'exp_avg_sq +total 5.12 kB' "$bin/ds_checkpoint" inspect $form
    check "verify $form" 0 'global_step3[a-z_]*: right' "$bin/ds_checkpoint" verify $form
    check "weights $form" 0 'Reconstructed Trainable fp32 state dict with 20 params 1280 elements' "$bin/zero_to_fp32" $form "w_$form"
    check "consolidate $form" 0 'shards are one' "$bin/ds_checkpoint" consolidate $form "c_$form"
    check "weights of c_$form" 0 'Saved fp32' "$bin/zero_to_fp32" "c_$form" "v_$form"
    cmp "w_$form/model.safetensors" "v_$form/model.safetensors" || failed=1
done
for stage in 2 3; do
    cmp w_zero$stage/model.safetensors w_universal$stage/model.safetensors || failed=1
done
check one 0 'Saved fp32' "$bin/zero_to_fp32" zero2/global_step3 w_one
check config 0 '"warmup_num_steps":6' "$bin/ds_checkpoint" inspect zero3 --state ds_config

# A run begins from one, and goes on from its own.
mkdir tok
{
    printf '{"version":"1.0","model":{"type":"BPE","vocab":{'
    n=0
    for c in {a..z} {A..I}; do
        printf '%s"%s":%d' "$([ $n = 0 ] || echo ,)" "$c" $n
        n=$((n + 1))
    done
    printf '},"merges":[]},"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}}'
} > tok/tokenizer.json
for _ in {1..100}; do printf 'thequickbrownfoxABCjumpsoverthelazydog'; done > q.txt
echo '{"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "betas": [0.9, 0.95], "weight_decay": 0.1}}, "zero_optimization": {"stage": 3}}' > ds.json
train=("$bin/ds_train" --model_config "$golden/config.json" --tokenizer tok --data q.txt --seq_length 12 --threads 1 --deepspeed_config ds.json)
no_decay=("${train[@]}")
train+=(--decay_all)
check begin 0 'resumed after step 3' "${train[@]}" --output out --steps 5 --resume ./zero2
check named 0 'resumed after step 3' "${train[@]}" --output out2 --steps 5 --resume zero3/global_step3
check universal 0 'resumed after step 3' "${train[@]}" --output out5 --steps 5 --resume ./universal3
check decay 1 'was trained with weight decay on all parameters' "${no_decay[@]}" --output out6 --steps 5 --resume ./zero2
check on 0 'resumed after step 5' "${train[@]}" --output out --steps 7 --resume
check beside 1 "none has no file .latest" "${train[@]}" --output out3 --steps 5 --resume ./none
[ -f zero2/latest ] && [ "$(cat zero2/latest)" = global_step3 ] || { echo "FAILED: the folder that was begun from has changed"; failed=1; }
sed -i 's/0.95/0.999/' ds.json
check betas 1 'global_step3 was saved with optimizer.params.betas' "${train[@]}" --output out4 --steps 5 --resume ./zero2
sed -i 's/0.999/0.95/; s/AdamW/Lion/' ds.json
check other 1 'was saved with the optimizer adam, the configuration asks for lion' "${train[@]}" --output out4 --steps 5 --resume ./zero2
exit "$failed"
