#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
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

# Stages of a pipeline, and experts: the names are the model's.
for form in pipe pipe_tied pipe_universal experts1 experts2 experts_pipe; do
    tar -xzf "$golden/$form.tar.gz" || exit 1
    check "list $form" 0 'whole +global_step3[a-z_]* +\(latest\) of DeepSpeed for Python' "$bin/ds_checkpoint" list $form
    check "verify $form" 0 'global_step3[a-z_]*: right' "$bin/ds_checkpoint" verify $form
    check "weights $form" 0 'Saved fp32' "$bin/zero_to_fp32" $form "w_$form"
    check "consolidate $form" 0 'shards are one' "$bin/ds_checkpoint" consolidate $form "c_$form"
    check "weights of c_$form" 0 'Saved fp32' "$bin/zero_to_fp32" "c_$form" "v_$form"
    cmp "w_$form/model.safetensors" "v_$form/model.safetensors" || failed=1
done
cmp w_pipe/model.safetensors w_pipe_universal/model.safetensors || failed=1
grep -q 'model.layers.1.mlp.gate_proj.weight' w_pipe_tied/model.safetensors || { echo "FAILED: names of a pipeline"; failed=1; }
grep -q 'model.layers.1.block_sparse_moe.experts.3.w2.weight' w_experts2/model.safetensors || { echo "FAILED: names of experts"; failed=1; }

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
check stages 0 'resumed after step 3' "${train[@]}" --output out7 --steps 5 --resume ./pipe_tied
check another 1 'the weight lm_head.weight is not part of this model.*parameter_names.txt' "${train[@]}" --output out8 --steps 5 --resume ./pipe
printf '* odd.*\n' > pipe_tied/parameter_names.txt
check names 1 'the weight odd[.0-9a-z_]* is not part of this model.*parameter_names.txt' "${train[@]}" --output out9 --steps 5 --resume ./pipe_tied
rm pipe_tied/parameter_names.txt
check decay 1 'was trained with weight decay on all parameters' "${no_decay[@]}" --output out6 --steps 5 --resume ./zero2
check on 0 'resumed after step 5' "${train[@]}" --output out --steps 7 --resume
check beside 1 "none has no file .latest" "${train[@]}" --output out3 --steps 5 --resume ./none
[ -f zero2/latest ] && [ "$(cat zero2/latest)" = global_step3 ] || { echo "FAILED: the folder that was begun from has changed"; failed=1; }

# Written for it: of a run of ours, and of a folder of its own.
check written 0 'd2/global_step7: for DeepSpeed at ZeRO stage 2 on 3 ranks' "$bin/ds_checkpoint" deepspeed out d2 --zero_stage 2 --ranks 3
check third 0 'd3/global_step7: for DeepSpeed at ZeRO stage 3 on 1 rank' "$bin/ds_checkpoint" deepspeed out d3 --zero_stage 3 --ranks 1 --sub_group_size 300
check any 0 'du/global_step7_universal: for DeepSpeed with' "$bin/ds_checkpoint" universal out du --ranks 2
check again 2 'd2 holds global_step7 already' "$bin/ds_checkpoint" deepspeed d3 d2 --zero_stage 2 --ranks 3
check over 0 'd2/global_step7: for DeepSpeed' "$bin/ds_checkpoint" deepspeed d3 d2 --zero_stage 2 --ranks 3 --overwrite
check "weights of ours" 0 'Saved fp32' "$bin/zero_to_fp32" out w_out
for folder in d2 d3 du; do
    check "verify $folder" 0 'right' "$bin/ds_checkpoint" verify $folder
    check "weights of $folder" 0 'Saved fp32' "$bin/zero_to_fp32" $folder w_$folder
    cmp w_out/model.safetensors w_$folder/model.safetensors || failed=1
    check "on from $folder" 0 'resumed after step 7' "${train[@]}" --output "on_$folder" --steps 9 --resume ./$folder --seed 3
    cmp on_$folder/model.safetensors on_d2/model.safetensors || failed=1
done
check "a pipeline" 0 'dp/global_step7: for DeepSpeed at ZeRO stage 1 on 3 ranks' "$bin/ds_checkpoint" deepspeed out dp --zero_stage 1 --ranks 3 --like pipe_tied
check "weights of dp" 0 'Saved fp32' "$bin/zero_to_fp32" dp w_dp
cmp w_out/model.safetensors w_dp/model.safetensors || failed=1
tar -xzf "$golden/pipe_groups.tar.gz" || exit 1
check "verify two groups" 0 'right' "$bin/ds_checkpoint" verify pipe_groups
no_decay_untied=("${no_decay[@]/$golden\/config.json/$golden/untied.json}")
check "two groups" 0 '2 steps' "${no_decay_untied[@]}" --output out_groups --steps 2
check "groups of a pipeline" 0 'dg/global_step2: for DeepSpeed at ZeRO stage 1' "$bin/ds_checkpoint" deepspeed out_groups dg --zero_stage 1 --ranks 1 --like pipe_groups
check "mixed groups" 1 "in its group 0 of parameters together with others" "$bin/ds_checkpoint" deepspeed out_groups dh --zero_stage 1 --ranks 1 --like pipe
check "like none" 2 'is no folder of DeepSpeed at ZeRO stage 1 or 2' "$bin/ds_checkpoint" deepspeed out dq --zero_stage 1 --ranks 3 --like d3
check "experts without a job" 1 'holds stacked experts .*--like' "$bin/ds_checkpoint" deepspeed experts1 dq --zero_stage 1 --ranks 2
check "experts" 0 'de/global_step3: for DeepSpeed at ZeRO stage 2 on 6 ranks' "$bin/ds_checkpoint" deepspeed c_experts1 de --zero_stage 2 --ranks 6 --like experts2
check "weights of de" 0 'Saved fp32' "$bin/zero_to_fp32" de w_de
cmp w_experts1/model.safetensors w_de/model.safetensors || failed=1
check "like at 2" 2 'the folder of a pipeline is of ZeRO stage 1' "$bin/ds_checkpoint" deepspeed out dq --zero_stage 2 --ranks 3 --like pipe_tied
check "like any" 2 'is no universal folder of DeepSpeed' "$bin/ds_checkpoint" universal out dq --like pipe_tied
check stage 2 'expected --zero_stage 1, 2 or 3 and --ranks N' "$bin/ds_checkpoint" deepspeed out d4 --zero_stage 2
check names 2 'a universal folder is loaded by names' "$bin/ds_checkpoint" universal out d4 --zero_stage 2
check "flags of others" 2 'belong to deepspeed and universal' "$bin/ds_checkpoint" inspect out --ranks 2
printf 'model.norm.weight\n' > order.txt
check order 2 "the order of parameters lacks 'model.embed_tokens.weight'" "$bin/ds_checkpoint" deepspeed out d4 --zero_stage 2 --ranks 2 --parameter_order order.txt
[ ! -e d4/global_step7 ] || { echo "FAILED: a refused folder is there"; failed=1; }

sed -i 's/0.95/0.999/' ds.json
check betas 1 'global_step3 was saved with optimizer.params.betas' "${train[@]}" --output out4 --steps 5 --resume ./zero2
sed -i 's/0.999/0.95/; s/AdamW/Lion/' ds.json
check other 1 'was saved with the optimizer adam, the configuration asks for lion' "${train[@]}" --output out4 --steps 5 --resume ./zero2
exit "$failed"
