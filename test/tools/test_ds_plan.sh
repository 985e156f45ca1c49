#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# ds_plan: reports in every form, what fits and what would, searches, differences, DeepSpeed's tables.
set -u
bin=$1
tool=$bin/ds_plan
golden=$DS_SOURCE_DIR/test/golden
. "$(dirname "$0")/../common/tool_check.sh"

zero() { # STAGE MICRO_BATCH ACCUMULATION
    printf '{"train_micro_batch_size_per_gpu": %s, "gradient_accumulation_steps": %s,
"bf16": {"enabled": true}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
"zero_optimization": {"stage": %s}, "gradient_clipping": 1.0}\n' "$2" "$3" "$1"
}
zero 0 4 2 > "$dir/z0.json"
zero 2 4 2 > "$dir/z2.json"
zero 3 1 1 > "$dir/z3.json"
zero 1 '"auto"' 1 > "$dir/auto.json"
cat > "$dir/llama70b.json" <<'END'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 32000,
"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
"num_key_value_heads": 8, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
"hidden_act": "silu", "tie_word_embeddings": false, "rope_theta": 10000.0}
END
xl=(--model_config "$golden/plan/gpt2_xl/config.json")
big=(--model_config "$dir/llama70b.json" --deepspeed_config "$dir/z3.json" --world_size 1024
    --nodes 128 --seq_length 4096)

check help 0 'usage: ds_plan' "$tool" --help
check nothing 2 'either --model DIR' "$tool"
check word 2 'the commands are "serve", "diff A B"' "$tool" differ a b
check no_config 2 'deepspeed_config FILE is missing' "$tool" "${xl[@]}"
check no_model 1 'none.json' "$tool" --model_config "$dir/none.json" --deepspeed_config "$dir/z2.json"
check output_alone 2 'give --fit too' "$tool" "${xl[@]}" --deepspeed_config "$dir/z2.json" --output x
check device 1 'h100-sxm' "$tool" "${xl[@]}" --deepspeed_config "$dir/z2.json" --device h100-sx
check trace_without_times 1 'give --device' \
    "$tool" "${xl[@]}" --deepspeed_config "$dir/z2.json" --memory 1TB --trace "$dir/t"
check experts 0 '^mixtral: 0\.51 M parameters \(0\.51 M trainable, 0\.27 M active a token\)' \
    "$tool" --model_config "$DS_SOURCE_DIR/test/programs/zero_mixtral.json" --deepspeed_config "$dir/z3.json" \
    --seq_length 32 --world_size 2 --memory 1TB
check streams 0 '^  comm +[1-9][0-9]* +[1-9]' "$tool" "${xl[@]}" --deepspeed_config "$dir/z3.json" --world_size 4 --memory 1TB
check auto_of_here 0 '^accelerator: cpu \(auto\)$' "$tool" "${xl[@]}" --deepspeed_config "$dir/z2.json" --memory 1TB
check auto_of_another 0 '^accelerator: null \(auto\)$' "$tool" "${xl[@]}" --deepspeed_config "$dir/z2.json" --memory 1TB --device h100-sxm
check named 0 '^accelerator: sim$' "$tool" "${xl[@]}" --deepspeed_config "$dir/z2.json" --memory 1TB --accelerator sim
check streams_json 0 '"stream": "compute", "steps": [1-9][0-9]*, "waits": [1-9]' \
    "$tool" "${xl[@]}" --deepspeed_config "$dir/z3.json" --world_size 4 --memory 1TB --json -
check fits 0 'fits: .* GiB are left' "$tool" "${xl[@]}" --deepspeed_config "$dir/z2.json" \
    --world_size 8 --memory 1TB
sed 's/"stage": 2/"stage": 2, "offload_optimizer": {"device": "cpu"}, "zenflow": {"select_strategy": "step", "select_interval": 100, "update_interval": 4}/' \
    "$dir/z2.json" > "$dir/zenflow.json"
check zenflow 0 'rest +0.25 ' "$tool" "${xl[@]}" --deepspeed_config "$dir/zenflow.json" \
    --world_size 8 --memory 1TB --device h100-sxm
check does_not 3 'GiB more than 11.18 GiB \(--memory\)' "$tool" "${xl[@]}" \
    --deepspeed_config "$dir/z2.json" --world_size 8 --memory 12000000000
check changes 3 'train_micro_batch_size_per_gpu [12], gradient_accumulation_steps [48]: .* GiB, .*bytes sent' \
    "$tool" "${xl[@]}" --deepspeed_config "$dir/z2.json" --world_size 8 --memory 12000000000
check never 3 'no change .* makes it fit' "$tool" "${xl[@]}" \
    --deepspeed_config "$dir/z2.json" --world_size 8 --memory 1000000000
check auto 0 'x 1024 tokens a micro-batch' "$tool" "${xl[@]}" --deepspeed_config "$dir/auto.json" \
    --world_size 8 --memory 40000000000

# a precision's flag: in force where the file is silent, else it must match
sed 's/"bf16": {"enabled": true}, //' "$dir/z2.json" > "$dir/silent.json"
silent=("$tool" "${xl[@]}" --deepspeed_config "$dir/silent.json" --memory 1TB)
check no_precision 0 'trainable\), f32, ' "${silent[@]}"
check flag_fp16 0 'trainable\), f16, ' "${silent[@]}" --fp16
check flag_bf16 0 'trainable\), bf16, ' "${silent[@]}" --bf16
check other_flag 1 'bf16.enabled: the file and the flag --fp16 disagree: true here, false by the flag' \
    "$tool" "${xl[@]}" --deepspeed_config "$dir/z2.json" --memory 1TB --fp16

# every form of one report
check forms 3 'MFU [0-9.]+ %' "$tool" "${big[@]}" --device h100-sxm --html "$dir/p.html" \
    --trace "$dir/p.trace"
[ "$("$tool" "${big[@]}" --device h100-sxm | grep -cE '^  (activation_checkpointing.recompute "(selective|full)"|activation_checkpointing.cpu_checkpointing true|(tensor_parallel.autotp_size|sequence_parallel_size) .*): .* GiB, .* step [0-9.]+ s instead of')" = 3 ] ||
    { echo "FAILED: three changes, their memory and their costs"; failed=1; }
for what in '<svg' 'gathered parameters' '>communication</span>' '>forward</span>' '>update</span>' 'steps</span>' 's</span>' '>Context</span>' 'MFU'; do
    grep -q -- "$what" "$dir/p.html" || { echo "FAILED html: no $what"; failed=1; }
done
if grep -qiE '<script|https?:' "$dir/p.html"; then
    echo "FAILED html: it is not self-contained"
    failed=1
fi
! grep -qE '>(disk read|disk write|host compute)</span>' "$dir/p.html" || { echo "FAILED html: lanes of nothing"; failed=1; }
python3 "$DS_SOURCE_DIR/test/tools/run_report.py" "$dir/p.html" -script 'Simulated timeline' 'Memory of a rank' 'up to' || failed=1
grep -q '"traceEvents"' "$dir/p.trace" || { echo "FAILED trace"; failed=1; }
"$tool" "${big[@]}" --memory 200000000000 --json "$dir/big.json" || { echo "FAILED json"; failed=1; }
check diff_alike 0 'the plans are alike' "$tool" diff "$dir/big.json" "$dir/big.json"
check diff_configs 0 'memory.need .* [-+][0-9.]+ %' \
    "$tool" diff "$dir/z0.json" "$dir/z2.json" "${xl[@]}" --world_size 4
check diff_digits 0 '^timeline.mfu +[0-9.e-]{3,14} +[0-9.e-]{3,14} ' \
    "$tool" diff "$dir/z0.json" "$dir/z2.json" "${xl[@]}" --world_size 4 --device h100-sxm
check diff_no_model 1 'no report of ds_plan --json' "$tool" diff "$dir/z0.json" "$dir/z2.json"

# what a search writes is a configuration, and what it says of it is so
check fit 0 'chosen: ' "$tool" "${xl[@]}" --deepspeed_config "$dir/z0.json" --world_size 8 \
    --memory 20000000000 --fit --output "$dir/fitted.json"
check fitted 0 'fits: ' "$tool" "${xl[@]}" --deepspeed_config "$dir/fitted.json" --world_size 8 \
    --memory 20000000000
# 10080 has 70 divisors up to 4096: the least of them are micro-batches too
zero 0 1 10080 > "$dir/many.json"
check fit_least 0 'chosen: .*train_micro_batch_size_per_gpu 1, gradient_accumulation_steps 10080' \
    "$tool" --model_config "$DS_SOURCE_DIR/bench/gpt2_124m.json" --deepspeed_config "$dir/many.json" \
    --memory 2700000000 --fit
check fitted_config 0 '"train_batch_size": 64' "$bin/ds_config" resolve "$dir/fitted.json" \
    --world_size 8 --values
small=(--model_config "$DS_SOURCE_DIR/bench/gpt2_124m.json" --deepspeed_config "$dir/z0.json")
# "auto" recomputation: the least that fits, also where only the planner knows the memory
zero 0 8 1 | sed 's/"gradient_clipping"/"activation_checkpointing": {"recompute": "auto"}, &/' > "$dir/auto8.json"
open=(--model_config "$DS_SOURCE_DIR/bench/gpt2_124m.json" --deepspeed_config "$dir/auto8.json")
check auto_none 0 'stage 0, 1 rank$' "$tool" "${open[@]}" --memory 5000000000
check auto_selective 0 '1 rank, recompute selective$' "$tool" "${open[@]}" --memory 4600000000
check auto_full 0 '1 rank, recompute full$' "$tool" "${open[@]}" --memory 3000000000
check auto_device 0 '1 rank, recompute full$' "$tool" "${open[@]}" --device h100-sxm --memory 4000000000
check auto_least 3 '1 rank, recompute full$' "$tool" "${open[@]}" --memory 1000000000
# the configuration's own limit counts, as it does for the engine; and what has no effect is said
sed 's/"gradient_clipping"/"device_memory": 2000000000, &/' "$dir/z0.json" > "$dir/limit.json"
check limit 3 'does not fit: .* GiB more than 1.86 GiB \(device_memory, ' "$tool" "${open[@]/auto8.json/limit.json}" --memory 20000000000
check limit_fits 0 'fits: ' "$tool" "${open[@]/auto8.json/limit.json}" --memory 20000000000 --fit --nvme_path /a --output "$dir/limited.json"
check limit_json 3 '"fits": false' "$tool" "${open[@]/auto8.json/limit.json}" --memory 20000000000 --json -
check limit_lacks 3 '"lacks": \{"need": [0-9]+, "have": 2000000000, "of": "device_memory' "$tool" "${open[@]/auto8.json/limit.json}" --memory 20000000000 --json -
# the page names every kind that it draws, and what of the memory its curve leaves out
sed 's/"gradient_clipping"/"device_memory": 4000000000, &/; s/"stage": 3/&, "offload_optimizer": {"device": "cpu"}/' "$dir/z3.json" > "$dir/beside.json"
check twice 0 '^  master weights, host +[0-9]' "$tool" --model_config "$DS_SOURCE_DIR/bench/gpt2_124m.json" --deepspeed_config "$dir/beside.json" --memory 20000000000
check page 0 'fits: ' "$tool" --model_config "$DS_SOURCE_DIR/bench/gpt2_124m.json" --deepspeed_config "$dir/beside.json" --memory 20000000000 --html "$dir/beside.html"
[ "$(grep -o '<polygon' "$dir/beside.html" | wc -l)" = "$(grep -o '<i class="box"' "$dir/beside.html" | wc -l)" ] ||
    { echo "FAILED: a kind without a legend"; failed=1; }
grep -qE 'Beside it, in every step: [0-9.]+ [MG]iB .*; [0-9.]+ GiB in all' "$dir/beside.html" || { echo "FAILED: the host's part"; failed=1; }
zero 3 8 1 | sed 's/"stage": 3/&, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}/' > "$dir/host.json"
printf '{"base": "h100-sxm", "name": "small-host", "host": {"bytes": 1000000000}}' > "$dir/small.json"
check host 3 'does not fit: .* GiB more than 0.93 GiB \(the memory of its host' "$tool" "${open[@]/auto8.json/host.json}" --device "$dir/small.json"
sed 's/"gradient_clipping"/"activation_checkpointing": {"number_checkpoints": 3}, &/' "$dir/z0.json" > "$dir/number.json"
check notice 0 'number_checkpoints: no effect without recompute full' "$tool" "${open[@]/auto8.json/number.json}" --memory 20000000000
check auto_train 1 'expected device_memory with auto' "$bin/ds_config" check "$dir/auto8.json"
check fit_disk 0 '^chosen: .*offload_optimizer.nvme_path "/a,/b".*sub_group_size' "$tool" "${small[@]}" --memory 900000000 \
    --fit --nvme_path /a,/b --output "$dir/disk.json"
check fitted_disk 0 'fits: ' "$tool" "${small[@]}" --deepspeed_config "$dir/disk.json" --memory 900000000
check fit_host 0 '^chosen: .*offload_optimizer.device "cpu"' "$tool" "${small[@]}" --device h100-sxm --memory 1600000000 \
    --fit --overwrite --output "$dir/host.json"
check fitted_host 0 'fits: ' "$tool" "${small[@]}" --device h100-sxm --deepspeed_config "$dir/host.json" --memory 1600000000
check changes_offload 3 'offload_optimizer.device "nvme".*sub_group_size 10000000' "$tool" "${small[@]}" --memory 900000000
# parameters really leave memory: max_in_cpu would keep those of every model below 1e9 elements
check fit_params 0 '^chosen: .*offload_param.max_in_cpu 0' "$tool" "${small[@]}" --memory 650000000 \
    --fit --nvme_path /a --output "$dir/params.json"
check fitted_params 0 'fits: ' "$tool" "${small[@]}" --deepspeed_config "$dir/params.json" --memory 650000000
# what is offloaded already stays where it is, with less of it in memory
zero 3 1 1 | sed 's/"stage": 3/&, "offload_optimizer": {"device": "nvme", "nvme_path": "\/b"}/' > "$dir/there.json"
check changes_there 3 '^  zero_optimization.sub_group_size 10000000: ' \
    "$tool" "${small[@]}" --deepspeed_config "$dir/there.json" --memory 950000000
sed 's/"gradient_clipping"/"device_memory": 2000000000, &/; s/"device": "nvme"/"device": "cpu"/' "$dir/there.json" > "$dir/kept.json"
check changes_kept 3 '^  zero_optimization.sub_group_size 10000000: ' \
    "$tool" "${small[@]}" --deepspeed_config "$dir/kept.json" --memory 2700000000
check no_fit 2 'give --fit too' "$tool" "${small[@]}" --nvme_path /a
check nothing_fits 3 'nothing fits' "$tool" "${xl[@]}" --deepspeed_config "$dir/z0.json" \
    --world_size 8 --memory 1000000000 --fit
# what no configuration has a plan with is no lack of memory: the error of the plan without --fit
for name in CUDA cuda; do
    refused=("$tool" "${xl[@]}" --deepspeed_config "$dir/z0.json" --world_size 8 --device rtx-4090 --accelerator $name)
    code=0
    want=$(env -u DS_MODULE_PATH "${refused[@]}" 2>&1) || code=$?
    [ $code = 1 ] || continue # where the module is there it is planned
    [ "$(env -u DS_MODULE_PATH "${refused[@]}" --fit 2>&1; echo $?)" = "$want
1" ] || { echo "FAILED fit_refused: --fit of --accelerator $name says otherwise than: $want"; failed=1; }
done

# ranks that share layers or sequences: where nothing fits without; what the search writes fits; not where the file says how many
cat > "$dir/wide.json" <<'END'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 8192,
"num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 16384, "tie_word_embeddings": false}
END
zero 3 1 1 > "$dir/one.json"
wide=("$tool" --model_config "$dir/wide.json" --world_size 8 --seq_length 16384 --memory 2600000000)
check share_fit 0 '^chosen: .*(tensor_parallel.autotp_size|sequence_parallel_size)' "${wide[@]}" --deepspeed_config "$dir/one.json" --fit --output "$dir/shared.json"
check shared 0 'fits: ' "${wide[@]}" --deepspeed_config "$dir/shared.json"
check share_changes 3 '^  .*(tensor_parallel.autotp_size|sequence_parallel_size).* GiB' "${wide[@]}" --deepspeed_config "$dir/one.json"
sed 's/"gradient_clipping"/"sequence_parallel_size": 1, "tensor_parallel": {"autotp_size": 1}, "pipeline": {"stages": 1}, &/' "$dir/one.json" > "$dir/own.json"
check not_shared 3 'nothing fits' "${wide[@]}" --deepspeed_config "$dir/own.json" --fit
check by_axes 0 '^exposed communication by axes: .*(sp|tp) [0-9.]+ ms' "$tool" --model_config "$dir/wide.json" --world_size 8 --seq_length 16384 \
    --deepspeed_config "$dir/shared.json" --device h100-sxm

# DeepSpeed's tables, byte for byte
while read -r word total largest gpus nodes factor; do
    [ "$word" = case ] || continue
    "$tool" estimate --total_params "$total" --largest_layer_params "$largest" \
        --world_size $((gpus * nodes)) --nodes "$nodes" --additional_buffer_factor "$factor" |
        grep -v '^ZeRO stage\|^$' > "$dir/ours"
    sed -n "/^case $total /,/^case/p" "$golden/plan/estimate.txt" | grep -v ^case > "$dir/theirs"
    diff "$dir/theirs" "$dir/ours" || { echo "FAILED estimate $total"; failed=1; }
done < "$golden/plan/estimate.txt"
check estimate_model 0 'Model with 1557M total params, 80M largest' "$tool" estimate "${xl[@]}"
check estimate_nothing 2 'needs either --total_params' "$tool" estimate

check estimate_stage 2 'stage: expected at least 2, found 1' "$tool" estimate --total_params 100 --stage 1
check estimate_uneven 2 'same number of ranks on each of 2 nodes' "$tool" estimate --total_params 100 --world_size 7 --nodes 2

# the terminal takes one output
check terminal_two 2 'json - and --trace - both write to the terminal; give a file instead of "-"' "$tool" "${small[@]}" --json - --trace -
check terminal_pages 2 'html - and --trace - both write' "$tool" "${small[@]}" --json "$dir/r.json" --html - --trace -
check terminal_report 2 'the report and --trace - both write' "$tool" "${small[@]}" --trace -
check terminal_fit 2 'the search of --fit and --json - both write' "$tool" "${small[@]}" --fit --json -
check terminal_diff 2 'the differences and --trace - both write' "$tool" diff "$dir/big.json" "$dir/big.json" --trace -
check terminal_one 0 '^\{"displayTimeUnit"' "$tool" "${small[@]}" --json "$dir/r.json" --trace - --device h100-sxm

# flags that mean nothing where they stand are refused, and what cannot be written is not lost in silence
check foreign_stage 2 'stage means nothing to a plan: it is a flag of estimate' "$tool" "${small[@]}" --stage 3
check foreign_diff 2 'html means nothing to diff' "$tool" diff "$dir/big.json" "$dir/big.json" --html x
check foreign_trace 1 'give a trace as A or B' "$tool" diff "$dir/z0.json" "$dir/z2.json" "${xl[@]}" --trace x
check foreign_estimate 2 'device means nothing to estimate' "$tool" estimate --total_params 100 --device h200
check no_memory 2 '--memory: expected at least one byte' "$tool" "${small[@]}" --memory 0
for size in 80G 80GB 80GiB 80g 81920M 83886080K 0.078125T 85899345920; do
    check "memory_$size" 0 '"available": 85899345920,' "$tool" "${small[@]}" --memory "$size" --json -
done
check odd_memory 2 ' --memory: expected a size' "$tool" "${small[@]}" --memory 10XB
check many_ranks 2 'expected at most 1048576' "$tool" "${small[@]}" --world_size 4294967296
check too_long 1 'ds_plan: sequence length 5000 is above' "$tool" "${small[@]}" --seq_length 5000
check fit_untimed 0 '0\.0       -$' "$tool" "${small[@]}" --memory 12000000000 --fit
for form in "" "--json -" "--json /dev/full"; do
    # shellcheck disable=SC2086
    "$tool" "${small[@]}" $form > /dev/full 2> "$dir/err" && { echo "FAILED: $form on a full disk is no error"; failed=1; }
    grep -q 'ds_plan: cannot write' "$dir/err" || { echo "FAILED: $form on a full disk: $(cat "$dir/err")"; failed=1; }
done
echo old > "$dir/page.html"
ln -s page.html "$dir/link.html"
(trap '' XFSZ && ulimit -f 4 && "$tool" "${small[@]}" --overwrite --html "$dir/link.html" > /dev/null 2>&1) && { echo "FAILED: page too large"; failed=1; }
[ "$(cat "$dir/page.html")" = old ] || { echo "FAILED: a page that could not be written took the old one away"; failed=1; }
"$tool" "${small[@]}" --overwrite --html "$dir/link.html" > /dev/null
[ -L "$dir/link.html" ] && grep -q '<svg' "$dir/page.html" || { echo "FAILED: html through a link"; failed=1; }
check to_stdout 0 '"ds_plan": 1' "$tool" "${small[@]}" --json /dev/stdout

exit $failed
