#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# ds_plan serve: figures as text and JSON, what fits, what would (tried again with the flags it says), errors.
set -u
bin=$1
tool=$bin/ds_plan
. "$(dirname "$0")/../common/tool_check.sh"
cat > "$dir/llama70b.json" << 'END'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 32000, "hidden_size": 8192, "intermediate_size": 28672,
"num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
"hidden_act": "silu", "tie_word_embeddings": false, "rope_theta": 10000.0, "torch_dtype": "bfloat16"}
END
big=("$tool" serve --model_config "$dir/llama70b.json" --threads 1)
check help 0 'usage: ds_plan serve' "$tool" serve --help
check nothing 2 'either --model or --model_config' "$tool" serve
check type 1 'there is no type "q9"' "${big[@]}" --quantize q9
check tokens 1 'kv_tokens is 100' "${big[@]}" --kv_tokens 100
check no_memory 1 'memory: expected at least one byte' "${big[@]}" --memory 0
check fits 0 'fits: 204800\.0 MiB of --memory' "${big[@]}" --memory 200GB
# weights of 68,976,648,192 parameters in bf16; 80 layers × 8 heads × 128 × 2 × 2 bytes a position
check figures 0 '"position_bytes": 327680,' "${big[@]}" --memory 200GB --json -
# codes and an fp32 for each of 2 × 80 × 8 heads: 1280 × (128 + 4) bytes
check codes 0 '"position_bytes": 168960,' "${big[@]}" --memory 200GB --kv_type int8 --json -
check cells 0 'positions of 640.00 KiB, f32' "${big[@]}" --memory 300GB --kv_type f32
check cell_type 2 'kv_type' "${big[@]}" --kv_type int4
check too_large 3 'does not fit: .* MiB too much' "${big[@]}" --memory 80GB
check disk 3 'would fit with --offload_param nvme .* --max_in_cpu [0-9]*:' "${big[@]}" --memory 8GB
check keys 3 'would fit with --offload_param nvme .* --offload_kv:' "${big[@]}" --memory 5GB
check none 3 'nor a disk would do' "${big[@]}" --memory 512MB
check device 0 'texts together .* tokens a second' "${big[@]}" --device h100-sxm --memory 200GB
# guesses have rows of logits of their own (ds_serve's flags are the same table)
plain=$("${big[@]}" --memory 200GB --json - | grep '"batch"')
[ "$plain" != "$("${big[@]}" --memory 200GB --draft 8 --json - | grep '"batch"')" ] || { echo "FAILED: --draft takes no memory"; exit 1; }
# the drafter: weights, positions and a batch of its own
sed 's/"num_hidden_layers": 80/"num_hidden_layers": 8/' "$dir/llama70b.json" > "$dir/small.json"
# 0.1 of the layers: 327680 + 32768 bytes a position
check drafter 0 '"position_bytes": 360448,' "${big[@]}" --memory 200GB --draft_model "$dir/small.json" --json -
check drafter_weights 0 '^  weights  *145618\.78' "${big[@]}" --memory 200GB --draft_model "$dir/small.json"
check no_drafter 1 'nowhere.json' "${big[@]}" --draft_model nowhere.json
# where cells of int8 are what makes it fit, they are offered
check int8 3 'would fit with --kv_type int8: ' "${big[@]}" --memory 143GB --kv_tokens 65536
n=0
for memory in 5GB 8GB 38GB 41GB 73GB 100GB 130GB 133GB; do
    "${big[@]}" --memory "$memory" > "$dir/out"
    while read -r flags; do
        read -ra words <<< "$flags"
        n=$((n + 1))
        check "would_fit_$n" 0 'fits:' "${big[@]}" --memory "$memory" "${words[@]}"
    done < <(sed -n 's/^  would fit with \(.*\): .*/\1/p' "$dir/out")
done
[ "$n" -ge 6 ] || { echo "FAILED: only $n changes were offered"; failed=1; }
exit $failed
