#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Sequence parallelism by configuration: models trained on 1, 2, 4 and 8 ranks with and without it, over every ZeRO stage, beside data
# and tensor parallelism, with heads that the ranks do not divide, with documents packed, evaluated, resumed on another mesh, sampled;
# planned; what it cannot do is refused by name. Usage: test_sequence_cli.sh BUILD
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
cat > llama.json <<'EOF'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 256, "hidden_size": 96, "intermediate_size": 96,
 "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 128,
 "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": false}
EOF
cat > gpt2.json <<'EOF'
{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 257, "n_embd": 64, "n_layer": 2, "n_head": 4,
 "n_positions": 128, "attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1}
EOF
head -c 40000 "$DS_SOURCE_DIR/data/tinyshakespeare.txt" > text.txt
# documents of uneven lengths, prompts that do not count: ranks have different numbers of targets
awk 'length($0) > 20 && n < 300 {n++; printf "{\"prompt\": \"%s\", \"completion\": \"%s\"}\n", substr($0, 1, 3 + n % 29), substr($0, 4 + n % 29)}' text.txt |
    sed 's/\\/ /g' > pairs.jsonl
config() { # FILE, STAGE, SP, TP, OTHER KEYS
    cat > "$1" <<EOF
{"train_batch_size": 8, "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
 "zero_optimization": {"stage": $2}, "sequence_parallel_size": $3, "tensor_parallel": {"autotp_size": $4} ${5:-}}
EOF
}
train() { # RANKS, CONFIG, OUTPUT, FLAGS
    local ranks=$1 config=$2 output=$3
    shift 3
    rm -f "$output.jsonl"
    "$build/deepspeed" --num_gpus "$ranks" "$build/ds_train" --tokenizer bytes --threads 1 --seq_length 32 --seed 7 \
        --lr_scheduler_type none --deepspeed_config "$config" --output "$output" --metrics "$output.jsonl" "$@" > "$output.log" 2>&1
}
losses() { sed -nE 's/.*"(eval_)?loss":([0-9.]+).*/\2/p' "$1.jsonl"; }
near() { # A, B: losses that differ by at most 2e-6 of themselves at the first step, where only sums have another order, 1e-4 behind it
    paste <(losses "$1") <(losses "$2") | awk '{n++; d = ($1 - $2) / $1; d = d < 0 ? -d : d; if (d > (n == 1 ? 2e-6 : 1e-4)) bad = 1} END {exit !(n >= 2 && !bad)}'
}
weights() { # OUTPUT: the hash of its newest checkpoint's weights
    "$build/ds_checkpoint" export "$1" "$1.model" --overwrite > /dev/null
    sha256sum < "$1.model/model.safetensors"
}

for model in llama gpt2; do
    config one.json 0 1 1
    train 1 one.json "$model-one" --model_config $model.json --data text.txt --steps 4 --eval_interval 2 --eval_fraction 0.1 || fail "$model on one rank" $model-one.log
    for mesh in 2:2:1:03 4:2:1:0123 4:4:1:03 4:2:2:03; do # RANKS:SP:TP:STAGES
        IFS=: read -r ranks sp tp stages <<< "$mesh"
        first=""
        for stage in $(grep -o . <<< "$stages"); do
            name=$model-$ranks-$sp-$tp-$stage
            config $name.json $stage "$sp" "$tp"
            train "$ranks" $name.json $name --model_config $model.json --data text.txt --steps 4 --eval_interval 2 --eval_fraction 0.1 || fail "$name" $name.log
            near $model-one $name || fail "$name: other losses than one rank: $(losses $model-one | tr '\n' ' ') $(losses $name | tr '\n' ' ')"
            hash=$(weights $name)
            [ "${first:=$hash}" = "$hash" ] || fail "$name has other bits than stage 0"
        done
    done
done

# position biases go by the numbers of heads and queries, soft caps and two rotary tables by positions; documents in a row. By heads,
# and, where the ranks do not divide the heads, by queries
cat > bloom.json <<'EOF'
{"model_type": "bloom", "vocab_size": 256, "hidden_size": 96, "n_layer": 2, "n_head": 6}
EOF
cat > gemma2.json <<'EOF'
{"model_type": "gemma2", "vocab_size": 256, "hidden_size": 96, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6,
 "num_key_value_heads": 2, "head_dim": 16, "query_pre_attn_scalar": 5, "sliding_window": 9, "attn_logit_softcapping": 2.0,
 "final_logit_softcapping": 3.0, "max_position_embeddings": 128}
EOF
cat > gemma3_text.json <<'EOF'
{"model_type": "gemma3_text", "vocab_size": 256, "hidden_size": 96, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6,
 "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 9, "sliding_window_pattern": 2, "max_position_embeddings": 128}
EOF
config two.json 3 2 1
config four.json 1 4 1
for model in bloom gemma2 gemma3_text; do
    train 1 one.json $model-one --model_config $model.json --data pairs.jsonl --steps 3 || fail "$model on one rank" $model-one.log
    train 2 two.json $model-two --model_config $model.json --data pairs.jsonl --steps 3 || fail "$model, sp 2" $model-two.log
    train 4 four.json $model-four --model_config $model.json --data pairs.jsonl --steps 3 || fail "$model, sp 4" $model-four.log
    near $model-one $model-two || fail "$model: other losses with sp 2: $(losses $model-one | tr '\n' ' ') $(losses $model-two | tr '\n' ' ')"
    near $model-one $model-four || fail "$model: other losses with sp 4: $(losses $model-one | tr '\n' ' ') $(losses $model-four | tr '\n' ' ')"
done

# documents in a row, and targets that do not count: the mean is over those of all ranks
config two.json 2 2 1
config four.json 1 4 1
train 1 one.json pairs-one --model_config llama.json --data pairs.jsonl --steps 3 || fail "pairs on one rank" pairs-one.log
train 2 two.json pairs-two --model_config llama.json --data pairs.jsonl --steps 3 || fail "pairs, sp 2" pairs-two.log
config both.json 3 2 2
train 4 both.json pairs-both --model_config llama.json --data pairs.jsonl --steps 3 || fail "pairs, sp 2 and tp 2" pairs-both.log
train 4 four.json pairs-four --model_config llama.json --data pairs.jsonl --steps 3 || fail "pairs, sp 4" pairs-four.log
near pairs-one pairs-two || fail "pairs: other losses with sp 2: $(losses pairs-one | tr '\n' ' ') $(losses pairs-two | tr '\n' ' ')"
near pairs-one pairs-both || fail "pairs: other losses with sp 2 and tp 2, the vocabulary cut"
near pairs-one pairs-four || fail "pairs: other losses with sp 4"

# by heads under both: what sp exchanges is an all-to-all, nothing is gathered along it
config plan.json 0 2 2
sed 's/"num_attention_heads": 6/"num_attention_heads": 8/' llama.json > eight.json
for model in eight gpt2; do
    "$build/ds_plan" --model_config $model.json --deepspeed_config plan.json --world_size 4 --seq_length 32 > plan.txt || fail "$model: no plan" plan.txt
    grep -q 'all_to_all *sp *forward' plan.txt || fail "$model: sp 2 and tp 2 exchange nothing" plan.txt
    ! grep -E 'all_gather *[a-z,]*sp[a-z,]* *(forward|backward)' plan.txt || fail "$model: sp 2 and tp 2 gather along sp" plan.txt
done

# goes on elsewhere: from sp to tp and sp, to one rank
train 2 two.json moves --model_config llama.json --data text.txt --steps 2 || fail "two steps" moves.log
config both.json 3 2 2
train 4 both.json moves --model_config llama.json --data text.txt --steps 3 --resume || fail "resumed on sp and tp" moves.log
train 1 one.json moves --model_config llama.json --data text.txt --steps 4 --resume || fail "resumed on one rank" moves.log
grep -q 'saved with sequence_parallel_size 2; from here on it is 1' moves.log || fail "no notice of the other mesh" moves.log
# resumed on its own mesh: the same bits
config three.json 3 2 1
train 2 three.json whole --model_config llama.json --data text.txt --steps 4 || fail "four steps" whole.log
[ "$(losses moves | tail -1 | cut -c1-5)" = "$(losses whole | tail -1 | cut -c1-5)" ] || fail "another loss behind resumes"
train 2 three.json parts --model_config llama.json --data text.txt --steps 2 || fail "two steps" parts.log
train 2 three.json parts --model_config llama.json --data text.txt --steps 4 --resume || fail "resumed" parts.log
[ "$(weights whole)" = "$(weights parts)" ] || fail "a resumed run has other bits"
# a sample of the trained model
train 2 three.json tells --model_config llama.json --data text.txt --steps 2 --sample "Once" --sample_length 8 || fail "a sample" tells.log

# planned: activations are less, what sp sends is there by its name
activations() { awk '$1 == "activations" && NF == 2 {print int($2 * 100)}' "$1"; }
"$build/ds_plan" --model_config llama.json --deepspeed_config one.json --seq_length 32 --world_size 1 > one.txt || fail "ds_plan one" one.txt
"$build/ds_plan" --model_config llama.json --deepspeed_config two.json --seq_length 32 --world_size 2 > two.txt || fail "ds_plan two" two.txt
held() { awk '/param of lm_head.weight/ {print $1}' "$1"; }
"$build/ds_plan" --model_config llama.json --deepspeed_config both.json --seq_length 32 --world_size 4 > both.txt || fail "ds_plan both" both.txt
[ "$(held both.txt)" = 0.05 ] || fail "the head is not cut beside sp: $(held both.txt) MiB of 0.09" both.txt
grep -qE 'all_to_all +sp +forward +8 ' two.txt || fail "the plan has not four exchanges a layer" two.txt
[ "$(activations two.txt)" -le $(($(activations one.txt) * 6 / 10)) ] || fail "activations: $(activations one.txt) and $(activations two.txt)"

# refused by name, with the nearest that goes
refused() { # RANKS, SP, TP, MODEL, MESSAGE
    config no.json 0 "$2" "$3"
    sed -i "s/\"train_batch_size\": 8/\"train_batch_size\": 12/" no.json
    ! train "$1" no.json no --model_config "$4" --data text.txt --steps 1 || fail "$5: was accepted"
    grep -q "$5" no.log || fail "no message: $5" no.log
}
refused 4 3 1 llama.json 'sequence_parallel_size: expected a divisor of the world size, 4, found 3; the nearest below is 2'
refused 3 3 1 llama.json 'sequence_parallel_size is 3, which does not divide the seq_length 32; the nearest that goes is a seq_length of 30 or 33, or sequence_parallel_size 2'
echo "sequence parallelism: passed"
