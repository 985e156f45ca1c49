#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# The FLOPs profiler: a report of one step whose parameters and products are those that one computes by hand.
# Usage: test_flops_profile.sh BUILD
set -euo pipefail
build=$(cd "$1" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
cat > gpt.json << END
{"model_type": "gpt2", "vocab_size": 256, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 4,
 "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
END
cat > ds.json << END
{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "bf16": {"enabled": true},
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "activation_checkpointing": {"recompute": "full"},
 "flops_profiler": {"enabled": true, "profile_step": 2, "top_modules": 2, "output_file": "report.txt"}}
END
for i in $(seq 400); do echo "line $i: the quick brown fox jumps over the lazy dog"; done > text.txt
"$build/ds_train" --model_config gpt.json --tokenizer bytes --data text.txt --deepspeed_config ds.json --steps 4 --threads 1 > log 2>&1 ||
    { cat log; exit 1; }
fail() {
    echo "FAIL: $1"
    cat report.txt
    exit 1
}
has() { grep -qF -- "$1" report.txt || fail "no line with: $1"; }
has "Profile Summary at step 2:"
# DeepSpeed's lines: labels of 70 columns, two blanks, numbers with as many digits as they need
has "params per GPU:                                                         120.58 K"
has "Top 2 modules in terms of params, MACs or fwd latency at different model depths:"
grep -qE "^bwd FLOPS per GPU = 2\.[0-9]+ \* fwd flops per GPU / bwd latency: +[0-9.]+ [KMGT]FLOPS" report.txt || fail "bwd FLOPS"
grep -qE "^fwd\+bwd FLOPS per GPU = 3\.[0-9]+ \* fwd flops per GPU / \(fwd\+bwd latency\): +[0-9.]+ [KMGT]FLOPS" report.txt || fail "fwd+bwd FLOPS"
[ "$(tail -n 1 report.txt)" = "$(printf -- '-%.0s' $(seq 78))" ] || fail "no last line"
# operations of the model and of the hardware are the plan's
"$build/ds_plan" --model_config gpt.json --deepspeed_config ds.json --threads 1 --json plan.json || [ $? = 3 ] || fail "no plan"
for kind in model:model computed:hardware; do
    said=$(sed -nE "s/^${kind#*:} flops of an iter per GPU .*: +([0-9.]+) M *$/\1/p" report.txt)
    planned=$(sed -nE "s/.*\"${kind%:*}\": ([0-9]+).*/\1/p" plan.json | head -1)
    [ "$said" = "$(awk "BEGIN {printf \"%.6g\", sprintf(\"%.2f\", $planned / 1e6)}")" ] || fail "$kind: $said, the plan has $planned"
done
# 128 tokens: products 64·192, 64·64, 64·256, 256·64 a layer; 1.57 M = 128·64·192 of one c_attn
has "(c_attn): 12.48 K = 10.35% Params, 1.57 MMACs"
has "(c_fc): 16.64 K = 13.8% Params, 2.1 MMACs"
# the head has 128·64·256 and lies with its tied weight
has "(wte): 16.38 K = 13.59% Params, 2.1 MMACs"
has "'h.*': '99.97 K'"
grep -q "recomputed flops among them: *[1-9]" report.txt || fail "no recomputation was counted"
grep -q "^fwd latency: *[0-9.]* [mu]*s *$" report.txt || fail "no time of the forward pass"
[ "$(grep -c '^        (attn)' report.txt)" = 2 ] || fail "two layers in the tree"

# what is gathered counts where it belongs: every module of stage 3 on two ranks has the products of one rank
modules() { sed -nE 's/^ *\(([^)]*)\): .* Params, (.*) = .*% MACs.*/\1 \2/p' report.txt; }
modules > whole.txt
for threshold in 0 100; do
    rm -f report.txt # a report of another run would stay
    sed "s/\"bf16\"/\"zero_optimization\": {\"stage\": 3, \"stage3_param_persistence_threshold\": $threshold}, \"bf16\"/" ds.json > zero.json
    "$build/deepspeed" --num_gpus 2 "$build/ds_train" --model_config gpt.json --tokenizer bytes --data text.txt \
        --deepspeed_config zero.json --steps 4 --threads 1 > log 2>&1 || { cat log; exit 1; }
    [ -s whole.txt ] && modules | diff whole.txt - || fail "stage 3, threshold $threshold: other products"
done

# depth 0: the model alone
rm -f report.txt
sed -i 's/"top_modules": 2/"module_depth": 0/' ds.json
"$build/ds_train" --model_config gpt.json --tokenizer bytes --data text.txt --deepspeed_config ds.json --steps 4 --threads 1 > log 2>&1
! grep -q "depth 1:\|(transformer)" report.txt || fail "deeper than asked"

# a step that the run does not reach is told of
rm -f report.txt
sed 's/"profile_step": 2/"profile_step": 4/' ds.json > late.json
"$build/ds_train" --model_config gpt.json --tokenizer bytes --data text.txt --deepspeed_config late.json --steps 4 --threads 1 > log 2>&1
grep -q "profile_step 4: this run has 0 optimizer steps behind it and ends with 4; nothing is profiled" log || { cat log; exit 1; }

# ranks that share layers: each has half of what is cut, and together they do what one does
numbers() { sed -nE "s/^$1: +([0-9.]+) ([KM]) *$/\1/p" report.txt; }
for n in 1 2; do
    rm -f report.txt
    sed "s/\"bf16\"/\"tensor_parallel\": {\"autotp_size\": $n}, \"bf16\"/" ds.json > tp.json
    "$build/deepspeed" --num_gpus $n "$build/ds_train" --model_config gpt.json --tokenizer bytes --data text.txt \
        --deepspeed_config tp.json --steps 4 --threads 1 > log 2>&1 || { cat log; exit 1; }
    [ "$(sed -nE 's/^model parallel size: +//p' report.txt | tr -d ' ')" = $n ] || fail "model parallel size of tp $n"
    numbers "params of model" > "params_$n"
    numbers "fwd flops of model = fwd flops per GPU \* mp_size" > "flops_$n"
    numbers "params per GPU" > "own_$n"
done
cmp params_1 params_2 || fail "tp 2: another model"
awk -v one="$(cat flops_1)" -v two="$(cat flops_2)" 'BEGIN {exit !(one > 0 && two >= one && two < 1.1 * one)}' || fail "tp 2: other operations than one rank's $(cat flops_1)"
# by hand: halved are the products' 2·12·64², the biases of c_attn and c_fc and the vocabulary's table
[ "$(cat own_1)" = "$(cat params_1)" ] || fail "params per GPU of one rank"
[ "$(cat own_2)" = 62.78 ] || fail "tp 2: params per GPU are $(cat own_2)"

# its folder is made; a report that cannot be written ends the run before its first step
sed -i 's/report.txt/made\/here\/report.txt/' ds.json
"$build/ds_train" --model_config gpt.json --tokenizer bytes --data text.txt --deepspeed_config ds.json --steps 4 --threads 1 > log 2>&1 || cat log
grep -q "Flops Profiler" made/here/report.txt || fail "no report in a new folder"
sed -i 's/made\/here/text.txt/' ds.json
! "$build/ds_train" --model_config gpt.json --tokenizer bytes --data text.txt --deepspeed_config ds.json --steps 4 --threads 1 > log 2>&1 ||
    fail "an impossible output_file was accepted"
grep -q "output_file: cannot .*text.txt" log && ! grep -q "step 3" log || { cat log; exit 1; }
echo "flops profile: passed"
