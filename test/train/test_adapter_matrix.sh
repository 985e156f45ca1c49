#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Adapters by ds_train: the same bits in every ZeRO stage, with offload, recomputation, other threads, and saved and resumed on
# another stage; the same to a tolerance under tensor parallelism; ds_generate, ds_plan, and what is refused.
# Usage: test_adapter_matrix.sh BUILD
set -euo pipefail
build=$1
golden=$DS_SOURCE_DIR/test/golden/adapter
scratch=$(mktemp -d)
[ -n "${KEEP:-}" ] || trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
fail() { echo "FAIL: $*" >&2; exit 1; }
mkdir disk

lora=(--lora 4 --lora_alpha 16 --lora_dropout 0.2 --lora_method rslora --modules_to_save norm)
run() { # name, ranks, keys of the configuration, flags …
    local name=$1 ranks=$2 keys=$3
    shift 3
    echo "{\"train_micro_batch_size_per_gpu\":2, \"optimizer\":{\"type\":\"AdamW\",\"params\":{\"lr\":1e-2}} $keys}" > "$name.json"
    "$build/deepspeed" --num_gpus "$ranks" "$build/ds_train" --model "$golden/models/${model:-llama}" --tokenizer bytes \
        --data "$golden/rows.jsonl" --seq_length 48 --deepspeed_config "$name.json" --lr_scheduler_type none "$@" > "$name.log" 2>&1 ||
        { cat "$name.log"; fail "$name"; }
}
bits() { sha256sum < "$1/adapter_model.safetensors"; }
same() { [ "$(bits "$1")" = "$want" ] || fail "$1 gives other weights"; }
shard='"stage3_param_persistence_threshold":0,"reduce_bucket_size":500'
half='"bf16":{"enabled":true},'

for model in llama gpt2 mixtral; do
    flags=("${lora[@]}")
    [ $model != mixtral ] || flags=(--lora 2 --lora_targets q_proj mlp.experts.gate_up_proj mlp.experts.down_proj)
    [ $model != gpt2 ] || flags=(--lora 2 --lora_targets c_attn c_fc mlp.c_proj --lora_dropout 0.1)
    for stage in 0 1 2 3; do
        run "z$stage" 2 ",$half \"zero_optimization\":{\"stage\":$stage,$shard}" --steps 6 --output "$model.z$stage" "${flags[@]}" \
            --threads $((stage % 2 + 1))
    done
    want=$(bits $model.z0)
    for stage in 1 2 3; do
        same $model.z$stage
    done
    run recompute 2 ",$half \"activation_checkpointing\":{\"recompute\":\"full\"},\"zero_optimization\":{\"stage\":3,$shard}" \
        --steps 6 --output $model.recompute "${flags[@]}"
    same $model.recompute
    run offload 2 ",$half \"zero_optimization\":{\"stage\":3,$shard,\"offload_param\":{\"device\":\"nvme\",\"nvme_path\":\"$scratch/disk\"},
        \"offload_optimizer\":{\"device\":\"cpu\"}}" --steps 6 --output $model.offload "${flags[@]}"
    same $model.offload
    run resumed 2 ",$half \"zero_optimization\":{\"stage\":3,$shard}" --steps 6 --save_interval 3 --output $model.resumed "${flags[@]}"
    rm -rf $model.resumed/global_step6 $model.resumed/adapter_*
    echo -n global_step3 > $model.resumed/latest
    run resumed 2 ",$half \"zero_optimization\":{\"stage\":1,$shard}" --steps 6 --output $model.resumed "${flags[@]}" --resume
    same $model.resumed
done
# PiSSA changes the frozen weights, which no rank has whole.
model=llama
for stage in 0 3; do
    run "p$stage" 2 ",$half \"zero_optimization\":{\"stage\":$stage,$shard}" --steps 4 --output "pissa.z$stage" --lora 2 --lora_method pissa
done
want=$(bits pissa.z0)
same pissa.z3
# Embeddings and heads: saved whole, with tokens added, untied from each other, and with A and B of their own.
tables() { # name, model, flags …
    local name=$1
    model=$2
    shift 2
    for stage in 0 2 3; do
        run "$name$stage" 2 ",$half \"zero_optimization\":{\"stage\":$stage,$shard}" --steps 4 --output "$name.z$stage" "$@"
    done
    want=$(bits "$name.z0")
    same "$name.z2"
    same "$name.z3"
}
tables longer llama --lora 2 --lora_targets q_proj --modules_to_save embed_tokens lm_head --resize_vocab 261
tables untied gpt2 --lora 2 --lora_targets c_attn --modules_to_save wte --resize_vocab 256
tables table llama --lora 2 --lora_targets embed_tokens v_proj
tables head llama --lora 2 --lora_targets lm_head v_proj --lora_dropout 0.1
tables head_dora llama --lora 2 --lora_targets lm_head v_proj --lora_dropout 0.1 --lora_method dora
tables router mixtral --lora 2 --lora_targets mlp.gate.weight v_proj
tables beside llama --lora 2 --lora_targets lm_head q_proj --lora_dropout 0.1 --frozen_adapters "$golden/head/end" "$golden/lora_table/end"
tables beside_experts mixtral --lora 2 --lora_targets q_proj mlp.experts.down_proj --frozen_adapters "$golden/experts_mixtral/end"
run again 2 ",$half \"zero_optimization\":{\"stage\":1,$shard}" --steps 2 --output longer.again --adapter longer.z0
# A checkpoint holds no frozen weight: its embedding alone would be 8 KiB.
"$build/ds_checkpoint" inspect llama.z0 > inspect.log
if grep -qE '(param|master) +.*embed_tokens' inspect.log; then fail "the frozen embedding is in the checkpoint"; fi
grep -q 'layers.0.mlp.up_proj.lora_A.weight' inspect.log || fail "the adapter is not in the checkpoint"

# Tensor parallelism: the layers are cut with their adapters, and learn the same.
model=llama
run one 1 '' --steps 4 --output tp.one --metrics one.jsonl --lora 4 --micro_batch 2
run two 2 ',"tensor_parallel":{"autotp_size":2}' --steps 4 --output tp.two --metrics two.jsonl --lora 4 --micro_batch 2
tables=(--lora 4 --lora_targets embed_tokens q_proj o_proj --modules_to_save lm_head --micro_batch 2)
run one_table 1 '' --steps 4 --output tp.one_table --metrics one_table.jsonl "${tables[@]}"
run two_table 2 ',"tensor_parallel":{"autotp_size":2}' --steps 4 --output tp.two_table --metrics two_table.jsonl "${tables[@]}"
heads=(--lora 4 --lora_targets lm_head q_proj --micro_batch 2)
run one_head 1 '' --steps 4 --output tp.one_head --metrics one_head.jsonl "${heads[@]}"
run two_head 2 ',"tensor_parallel":{"autotp_size":2}' --steps 4 --output tp.two_head --metrics two_head.jsonl "${heads[@]}"
dora=(--lora 4 --lora_method dora --lora_dropout 0.2 --micro_batch 2)
run one_dora 1 '' --steps 4 --output tp.one_dora --metrics one_dora.jsonl "${dora[@]}"
run two_dora 2 ',"tensor_parallel":{"autotp_size":2}' --steps 4 --output tp.two_dora --metrics two_dora.jsonl "${dora[@]}"
beside=(--adapter "$golden/head/start" --micro_batch 2 --frozen_adapters "$golden/head/end" "$golden/rslora/end" "$golden/lora_table/end")
run one_beside 1 '' --steps 4 --output tp.one_beside --metrics one_beside.jsonl "${beside[@]}"
run two_beside 2 ',"tensor_parallel":{"autotp_size":2}' --steps 4 --output tp.two_beside --metrics two_beside.jsonl "${beside[@]}"
model=qwen3_moe
experts=(--lora 2 --lora_targets q_proj experts.gate_up_proj experts.down_proj mlp.gate.weight --micro_batch 2)
run one_experts 1 '' --steps 4 --output tp.one_experts --metrics one_experts.jsonl "${experts[@]}"
run two_experts 2 ',"tensor_parallel":{"autotp_size":2}' --steps 4 --output tp.two_experts --metrics two_experts.jsonl "${experts[@]}"
grep -q 'share 20 of 45 parameters' two_experts.log || fail "the experts are not shared: $(cat two_experts.log)"
# Expert parallelism: the bits of ranks that have all experts.
run apart 2 '' --steps 4 --output ep.apart "${experts[@]}"
want=$(bits ep.apart)
run shared 2 ',"expert_parallel":{"enabled":true,"autoep_size":2}' --steps 4 --output ep.shared "${experts[@]}"
same ep.shared
run shared3 2 ",\"expert_parallel\":{\"enabled\":true,\"autoep_size\":2},\"zero_optimization\":{\"stage\":3,$shard}" --steps 4 --output ep.shared3 \
    "${experts[@]}"
same ep.shared3
model=llama
shared=$(sed -nE 's/.*tensor parallel: 2 ranks share ([0-9]+) of .*/\1/p' two.log)
[ "${shared:-0}" -ge 20 ] || fail "the layers are not shared: $(cat two.log)" # 8 weights, as many matrices, embedding, head, …
loss() { sed -nE 's/.*"loss":([^,]*).*/\1/p' "$1"; }
for name in '' _table _head _dora _experts _beside; do
    paste <(loss one$name.jsonl) <(loss two$name.jsonl) | awk '{ d = $1 - $2; bad = bad || d > 1e-5 || d < -1e-5 } END { exit bad || NR != 4 }' ||
        fail "tp learns another: $(paste <(loss one$name.jsonl) <(loss two$name.jsonl))"
done

# Text of the adapter, beside the model and merged into it.
"$build/ds_generate" --model "$golden/models/llama" --adapter "$golden/rslora/end" --tokenizer bytes --prompt "one two " \
    --max_new_tokens 24 > beside.txt 2> /dev/null
"$build/ds_checkpoint" merge "$golden/models/llama" "$golden/rslora/end" merged > /dev/null
"$build/ds_generate" --model merged --tokenizer bytes --prompt "one two " --max_new_tokens 24 > merged.txt 2> /dev/null
cmp beside.txt merged.txt || fail "merged, the text is another"
"$build/ds_generate" --model "$golden/models/llama" --tokenizer bytes --prompt "one two " --max_new_tokens 24 > plain.txt 2> /dev/null
if cmp -s beside.txt plain.txt; then fail "the adapter changes no text"; fi

# Several together, by their weights, are what one of them all says; nothing stays in TMPDIR.
mkdir several
say() { TMPDIR=$scratch/several "$build/ds_generate" --model "$golden/models/llama" --tokenizer bytes --prompt "one two " --max_new_tokens 24 "$@" 2> /dev/null; }
"$build/ds_checkpoint" combine both "$golden/lora/end" "$golden/combined/more" --weights 0.5,-2 --combination cat > /dev/null
say --adapter both > both.txt
say --adapter "$golden/lora/end" "$golden/combined/more" --adapter_weights 0.5,-2 > together.txt
cmp both.txt together.txt || fail "several adapters say another text"
"$build/ds_checkpoint" merge "$golden/models/llama" "$golden/lora/end" "$golden/combined/more" both.merged --weights 0.5,-2 > /dev/null
"$build/ds_generate" --model both.merged --tokenizer bytes --prompt "one two " --max_new_tokens 24 > both.txt 2> /dev/null
cmp both.txt together.txt || fail "several merged adapters say another text"
say --adapter "$golden/lora/end" > alone.txt
if cmp -s alone.txt together.txt; then fail "the second adapter changes no text"; fi
[ -z "$(ls several)" ] || fail "a folder stays: $(ls several)"
if say --adapter "$golden/lora/end" "$golden/dora/end" > /dev/null; then fail "DoRA is combined"; fi
[ -z "$(ls several)" ] || fail "a folder stays after an error: $(ls several)"

# Of ways that keep a part of the elements: their flags.
combine() { "$build/ds_checkpoint" combine "$1" "$golden/lora/end" "$golden/combined/more" "${@:2}" 2>&1; }
unlike() { # words, flags …
    local words=$1
    shift
    if combine parts "$@" > parts.log; then fail "combined: $*"; fi
    grep -q -- "$words" parts.log || fail "$*: $(cat parts.log)"
}
unlike '--density goes with' --combination ties
unlike '--density goes with' --density 0.5
unlike '--seed goes with' --combination ties --density 0.5 --seed 1
unlike '--majority_sign_method goes with' --combination dare_linear --density 0.5 --majority_sign_method frequency
combine parts --combination dare_ties --density 0.5 --seed 7 --majority_sign_method frequency > parts.log || fail "$(cat parts.log)"
combine again --combination dare_ties --density 0.5 --seed 7 --majority_sign_method frequency > parts.log
cmp parts/adapter_model.safetensors again/adapter_model.safetensors || fail "the same seed keeps others"

# The planner counts what is trained.
"$build/ds_plan" --model "$golden/models/llama" --deepspeed_config one.json --seq_length 48 --lora 4 --json lora.json > /dev/null
"$build/ds_plan" --model "$golden/models/llama" --deepspeed_config one.json --seq_length 48 --adapter "$golden/lora/start" > plan.txt
"$build/ds_plan" --model "$golden/models/llama" --deepspeed_config one.json --seq_length 48 --json full.json > /dev/null
trained() { sed -nE 's/.*"trainable": ([0-9]+).*/\1/p' "$1" | head -1; }
[ "$(trained lora.json)" = 1856 ] && [ "$(trained full.json)" -gt 10000 ] ||
    fail "trainable: $(trained lora.json) with an adapter, $(trained full.json) without"

# What contradicts or is not there.
refuses() { # words, flags …
    local words=$1
    shift
    if "$build/ds_train" --model "$golden/models/llama" --tokenizer bytes --data "$golden/rows.jsonl" --seq_length 48 --steps 1 \
        --deepspeed_config one.json "$@" > refused.log 2>&1; then fail "accepted: $*"; fi
    grep -q -- "$words" refused.log || fail "$*: $(cat refused.log)"
}
refuses '--lora_alpha goes with --lora RANK' --lora_alpha 3
refuses 'give one of them' --lora 2 --adapter "$golden/lora/start"
refuses '--frozen_adapters goes with --lora RANK or --adapter DIR' --frozen_adapters "$golden/lora/start"
refuses '"use_dora"' --lora 2 --frozen_adapters "$golden/lora/end" "$golden/dora/end"
refuses 'stands in the folder' --adapter "$golden/lora/start" --lora_targets q_proj
refuses 'the target "nothing"' --lora 2 --lora_targets q_proj nothing
refuses 'means no layer of this model' --adapter "$golden/conv1d/start"
cp -r "$golden/lora/start" own
refuses 'which this run reads' --adapter own --output own
refuses 'which this run reads' --lora 2 --frozen_adapters own --output own
cmp -s own/adapter_model.safetensors "$golden/lora/start/adapter_model.safetensors" || fail "the adapter that is read was written over"
refuses 'would neither be trained nor saved' --lora 2 --modules_to_save embed_tokens --resize_vocab 300
refuses 'which are not taken away' --resize_vocab 200
refuses 'was saved with the adapter' --lora 3 --output llama.z0 --resume
refuses 'holds an adapter alone' --output llama.z0 --resume
echo "all right"
