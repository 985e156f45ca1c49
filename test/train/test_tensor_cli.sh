#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Tensor parallelism by configuration: a model folder trained on 1, 2 and 4 ranks with and without it, over every ZeRO stage, resumed
# on another mesh, exported; what it cannot do is refused by name. Usage: test_tensor_cli.sh BUILD
set -euo pipefail
build=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
fail() {
    echo "FAIL: $1"
    [ ! -e "${2:-}" ] || tail -n 20 "$2"
    exit 1
}
cat > model.json <<'EOF'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 256, "hidden_size": 64, "intermediate_size": 96,
 "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
 "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": false}
EOF
head -c 40000 "$DS_SOURCE_DIR/data/tinyshakespeare.txt" > text.txt
config() { # FILE, STAGE, TP, OTHER KEYS
    cat > "$1" <<EOF
{"train_batch_size": 8, "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
 "zero_optimization": {"stage": $2}, "tensor_parallel": {"autotp_size": $3} ${4:-}}
EOF
}
train() { # RANKS, CONFIG, OUTPUT, FLAGS
    local ranks=$1 config=$2 output=$3
    shift 3
    "$build/deepspeed" --num_gpus "$ranks" "$build/ds_train" --tokenizer bytes --data text.txt --threads 1 --seq_length 32 --seed 7 \
        --lr_scheduler_type none --deepspeed_config "$config" --output "$output" --metrics "$output.jsonl" "$@" > "$output.log" 2>&1
}
losses() { sed -nE 's/.*"loss":([0-9.]+).*/\1/p' "$1.jsonl"; }
near() { # A, B: losses that differ by at most 1e-4
    paste <(losses "$1") <(losses "$2") | awk '{n++; d = $1 - $2; if (d < -1e-4 || d > 1e-4) bad = 1} END {exit !(n >= 2 && !bad)}'
}
weights() { # OUTPUT: the hash of its newest checkpoint's weights
    "$build/ds_checkpoint" export "$1" "$1.model" --overwrite > /dev/null
    sha256sum < "$1.model/model.safetensors"
}

config one.json 0 0
config tp.json 0 2
for stage in 1 2 3; do config tp$stage.json $stage 2; done
train 1 one.json one --model_config model.json --steps 4 || fail "one rank" one.log
train 4 tp.json tp --model_config model.json --steps 4 || fail "tp 2, dp 2" tp.log
near one tp || fail "other losses than one rank: $(losses one | tr '\n' ' ') $(losses tp | tr '\n' ' ')"
grep -q 'tensor parallel: 2 ranks share 16 of 21 parameters, 100 % of the elements$' tp.log || fail "what is sharded is not said" tp.log
sed 's/"vocab_size": 256/"vocab_size": 257/' model.json > odd.json
train 4 tp.json odd --model_config odd.json --steps 1 || fail "an odd vocabulary" odd.log
grep -q 'tensor parallel: 2 ranks share 16 of 21 parameters, 100 % of the elements$' odd.log || fail "an odd vocabulary is whole" odd.log
sed 's/"num_attention_heads": 4/"num_attention_heads": 1/; s/"num_key_value_heads": 2/"num_key_value_heads": 1/' model.json > single.json
train 4 tp.json single --model_config single.json --steps 1 || fail "one head" single.log
grep -q 'tensor parallel: 2 ranks share 8 of 21 parameters, .* whole on each: model.layers.0.self_attn.' single.log || fail "what is whole is not said" single.log
for stage in 1 2 3; do
    train 4 tp$stage.json tp$stage --model_config model.json --steps 4 || fail "stage $stage" tp$stage.log
    [ "$(weights tp)" = "$(weights tp$stage)" ] || fail "stage $stage has other bits"
done

# goes on elsewhere: from tp to one rank and back
train 1 one.json short --model_config model.json --steps 2 || fail "two steps" short.log
train 4 tp3.json short --model_config model.json --steps 4 --resume || fail "resumed on tp" short.log
grep -q 'saved with tensor_parallel.autotp_size 0; from here on it is 2' short.log || fail "no notice of the other mesh" short.log
[ "$(losses short | tail -1 | cut -c1-5)" = "$(losses one | tail -1 | cut -c1-5)" ] || fail "another loss behind a resume"

# a model folder: each rank reads its own slices
weights one > first.hash
train 2 tp3.json again --model one.model --steps 2 || fail "a model folder" again.log
train 1 one.json plain --model one.model --steps 2 || fail "a model folder on one rank" plain.log
near plain again || fail "a model folder gives other losses on tp"

# refused by name
config three.json 0 3
! train 4 three.json three --model_config model.json --steps 1 || fail "tp 3 of 4 ranks was accepted"
grep -q 'tensor_parallel.autotp_size: expected a divisor of the world size, 4, found 3' three.log || fail "tp 3 of 4 ranks" three.log
config five.json 0 5
sed -i 's/"train_batch_size": 8/"train_batch_size": 5/' five.json
! train 5 five.json five --model_config model.json --steps 1 || fail "tp 5 was accepted"
grep -q 'autotp_size 5: no layer of the model can be shared' five.log || fail "tp 5" five.log
config early.json 3 2 ', "zero_allow_untested_optimizer": true'
sed -i 's/"stage": 3/"stage": 2, "offload_optimizer": {"device": "cpu"}, "zenflow": {"topk_ratio": 0.1, "update_interval": 2, "select_interval": 4, "full_warm_up_rounds": 0, "select_strategy": "step"}/' early.json
! train 4 early.json early --model_config model.json --steps 1 || fail "ZenFlow with tp was accepted"
grep -q 'tensor_parallel.autotp_size: expected 0 or 1 with zero_optimization.zenflow' early.log || fail "ZenFlow" early.log

# rules by pattern: what they name is split so, or an error names it; without them nothing changes
specs() { # FILE, STAGE, MORE KEYS OF partition_config: a configuration with tp 2
    config "$1" "$2" '2, "partition_config": {'"$3"'}'
}
specs rules.json 1 '"use_default_specs": false, "layer_specs": [{"patterns": [".*\\.mlp\\.(gate|up)_proj\\.weight$"], "shape": [1, -1]},
    {"patterns": [".*\\.mlp\\.down_proj"], "partition_type": "Row", "partition_dim": 1}]'
train 4 rules.json rules --model_config model.json --steps 4 || fail "rules by pattern" rules.log
grep -q 'tensor parallel: 2 ranks share 6 of 21 parameters, .* whole on each: model.embed_tokens.weight' rules.log || fail "not by the rules" rules.log
near one rules || fail "rules by pattern: other losses"
specs skip.json 1 '"layer_specs": [{"patterns": [".*self_attn\\.[qkvo]_proj"], "partition_type": "skip"}]'
train 4 skip.json skip --model_config model.json --steps 1 || fail "skip" skip.log
grep -q 'tensor parallel: 2 ranks share 8 of 21 parameters, .* whole on each: model.layers.0.self_attn.q_proj.weight' skip.log || fail "skip" skip.log
broken() { # KEYS, MESSAGE
    specs broken.json 1 "$1"
    ! train 4 broken.json broken --model_config model.json --steps 1 || fail "accepted: $1"
    grep -q "$2" broken.log || fail "no message: $2" broken.log
}
broken '"layer_specs": [{"patterns": [".*q_proj"], "partition_type": "skip"}, {"patterns": [".*k_proj"]}]' \
    'layer_specs\[1\]: model.layers.0.self_attn.k_proj.weight cannot be split by column here'
broken '"layer_specs": [{"patterns": [".*up_proj"], "shape": [2, -1]}]' 'layer_specs\[0\].shape: expected 1 parts, which model.layers.0.mlp.up_proj.weight has'
broken '"layer_specs": [{"patterns": [".*up_proj"], "shape": [[4, 2, 2], -1]}]' 'layer_specs\[0\].shape: expected \[n, -1\]'
broken '"layer_specs": [{"patterns": [".*up_proj"], "gather_output": true}]' 'layer_specs\[0\].gather_output: model.layers.0.mlp.up_proj.weight is read in parts'
broken '"layer_specs": [{"patterns": [".*up_proj"], "partition_dim": 1}]' 'layer_specs\[0\].partition_dim: model.layers.0.mlp.up_proj.weight has its outputs on dim 0, found 1'
broken '"layer_specs": [{"patterns": [".*(up_proj"]}]' 'layer_specs\[0\].patterns: ".\*(up_proj" is no regular expression'
broken '"strict_mode": true, "layer_specs": [{"patterns": [".*mlp"], "partition_type": "skip"}]' 'strict_mode is true, and no entry of layer_specs names model.layers.0.self_attn'

# the launcher's lines about a rank that dies say its coordinates
train 4 tp.json dies --model_config model.json --steps 1000000 --save_interval 2 &
job=$!
for ((i = 0; i < 300; ++i)); do
    [ ! -e dies/latest ] || break
    sleep 0.1
done
for pid in $(pgrep -f "ds_train.* --output dies "); do
    [ "$(readlink "/proc/$pid/cwd")" = "$scratch" ] || continue
    ! tr '\0' '\n' < "/proc/$pid/environ" 2> /dev/null | grep -qx "RANK=3" || kill -KILL "$pid"
done
! wait "$job" || fail "a rank was killed and the job went on" dies.log
grep -q 'rank 3 (dp 1, tp 1) on .* was killed by SIGKILL' dies.log || fail "no coordinates at once" dies.log
grep -q 'who  *rank 3 (dp 1, tp 1), process' dies.log || fail "no coordinates in the report" dies.log
echo "tensor parallelism: passed"
