#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Files of DeepSpeed's inference engines as --deepspeed_config: ds_generate writes what the same flags write, or refuses by name.
set -u
build=$1
# shellcheck source=test/common/tiny_llama.sh
. "$DS_SOURCE_DIR/test/common/tiny_llama.sh" 2 64 2 256
python3 -c "print('the quick brown fox jumps over the lazy dog. ' * 20)" > data.txt
"$build/ds_train" --model_config llama.json --tokenizer bytes --data data.txt --seq_length 64 --micro_batch 2 --max_steps 1 \
    --learning_rate 1e-2 --output out > log 2>&1 || fail "training"
text() { "$build/ds_generate" --model out --prompt "the quick" --max_new_tokens 24 --no_echo --threads 1 "$@" 2> error > text || return 1; cat text; }
declare -A by_flags
same() { # FILE FLAGS…: the text of the file is that of the flags
    local got file=$1; shift
    got=$(text --deepspeed_config "$file") || fail "$file: $(cat error)"
    [ -n "${by_flags[$*]:-}" ] || by_flags[$*]=$(text "$@")
    [ "$got" = "${by_flags[$*]}" ] || fail "$file: another text than $*"
}
refused() { # FILE WORDS [FLAGS…]
    local file=$1 words=$2; shift 2
    text --deepspeed_config "$file" "$@" && fail "$file was taken"
    grep -q -- "$words" error || fail "$file: expected \"$words\", found $(cat error)"
}
echo '{"dtype": "fp32"}' > f32.json; same f32.json --dtype f32
echo '{"kernel_inject": true, "max_out_tokens": 64, "tp": {"tp_size": 1}}' > f16.json; same f16.json --dtype f16
echo '{"dtype": "int8"}' > int8.json; same int8.json --dtype f16 --quantize q8_0
echo '{"dtype": "int8", "quant": {"weight": {"num_bits": 4, "q_type": "asymmetric"}}}' > int4.json; same int4.json --dtype f16 --quantize q4_1
echo '{"state_manager": {"max_context": 40}, "quantization": {"quantization_mode": "wf6af16"}}' > v2.json; same v2.json --dtype f16 --quantize q6_k
echo '{"model_name_or_path": "out", "max_length": 40}' > mii.json; same mii.json --max_length 40
echo '{"model_name_or_path": "out", "tokenizer": "nowhere", "max_length": 40}' > tokenizer.json; refused tokenizer.json nowhere
mkdir -p disk
echo '{"dtype": "fp32", "zero": {"stage": 3, "stage3_param_persistence_threshold": 100, "offload_param": {"device": "nvme", "nvme_path": "disk"}}}' > zero.json
same zero.json --dtype f32
# weights elsewhere, listed by the file, by another one, and a copy of what is served
echo '{"dtype": "fp32", "checkpoint": {"type": "ds_model", "checkpoints": ["model.safetensors"], "version": 1.0}, "base_dir": "out", "save_mp_checkpoint_path": "copy"}' > listed.json
same listed.json --dtype f32
echo '{"dtype": "bf16", "checkpoint": "copy/ds_inference_config.json", "base_dir": "copy"}' > named.json; same named.json --dtype bf16
echo '{"dtype": "fp32", "checkpoint_config": {"checkpoint_dir": "copy"}}' > folder.json; same folder.json --dtype f32
"$build/ds_generate" --model copy --tokenizer bytes --prompt "the quick" --max_new_tokens 24 --no_echo --dtype f32 2> error | cmp - <(text --dtype f32) || fail "the copy is another model"
same listed.json --dtype f32 # over its own copy
# no copy over what is served, nor over weights of another kind
sum=$(cksum out/model.safetensors copy/model.safetensors)
ln -s out link
echo '{"dtype": "bf16", "save_mp_checkpoint_path": "link"}' > over.json; refused over.json "is where the model's weights are"
echo '{"dtype": "bf16", "checkpoint_config": {"checkpoint_dir": "copy"}, "save_mp_checkpoint_path": "copy"}' > over.json; refused over.json "is where the model's weights are"
mkdir other; echo > other/pytorch_model.bin
echo '{"dtype": "bf16", "save_mp_checkpoint_path": "other"}' > over.json; refused over.json "holds other weights"
[ "$sum" = "$(cksum out/model.safetensors copy/model.safetensors)" ] || fail "weights were overwritten"
echo '{"dtype": "fp32", "checkpoint": {"type": "ds_model", "checkpoints": ["missing.bin"], "version": 1.0}}' > gone.json; refused gone.json missing.bin
echo '{"dtype": "fp32", "max_out_tokens": 12}' > short.json; [ "$(text --deepspeed_config short.json | wc -c)" -lt 24 ] || fail "max_out_tokens"
echo '{"tp": {"tp_size": 2}}' > ranks.json; refused ranks.json "number of ranks that are started, 1, found 2"
echo '{"moe_experts": [8]}' > experts.json; refused experts.json "moe_experts is 8"
refused f32.json "leave --dtype and --max_length" --dtype f32
refused int8.json "weights in q4_0, but the configuration says q8_0" --quantize q4_0
echo '{"dtype": "fp32", "max_out_token": 12}' > wrong.json; refused wrong.json 'did you mean "max_out_tokens"'
exit 0
