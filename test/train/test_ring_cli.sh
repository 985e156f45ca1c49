#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Ring attention by configuration: models trained on one rank and on 2, 3 and 4 that share sequences, keys and values traveling, in halves
# and not, over ZeRO stages, threads and a resume, beside tensor parallelism; windows, biases, documents, dropout, odd lengths; what the plan
# says of memory. Usage: test_ring_cli.sh BUILD
#
# Losses are near those of one rank: of the first step within 2e-6 of themselves, where only sums have another order (test_sequence_cli.sh;
# a merge of two parts is a handful of roundings more in each of two layers, and a loss is a mean over tokens), behind it 1e-4.
set -euo pipefail
build=$(realpath "$1")
# shellcheck source=test/common/sequence_runs.sh
. "$DS_SOURCE_DIR/test/common/sequence_runs.sh"
cat > llama.json <<'EOM'
{"model_type": "llama", "vocab_size": 256, "hidden_size": 60, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 5,
 "num_key_value_heads": 1, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": false}
EOM
cat > bloom.json <<'EOM'
{"model_type": "bloom", "vocab_size": 256, "hidden_size": 48, "n_layer": 2, "n_head": 6}
EOM
cat > gemma2.json <<'EOM'
{"model_type": "gemma2", "vocab_size": 256, "hidden_size": 48, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6,
 "num_key_value_heads": 2, "head_dim": 8, "query_pre_attn_scalar": 5, "sliding_window": 9, "attn_logit_softcapping": 2.0,
 "final_logit_softcapping": 3.0, "max_position_embeddings": 128}
EOM
config() { # FILE, STAGE, SP, HALVES, OTHER KEYS
    cat > "$1" <<EOM
{"train_batch_size": 12, "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
 "zero_optimization": {"stage": $2}, "sequence_parallel_size": $3,
 "sequence_parallel": {"attention": "ring", "load_balance": $4} ${5:-}}
EOM
}

# against one rank; a part of 9, 7 or 11 positions is odd, so that its halves are not alike
config one.json 0 1 true
for model in llama gpt2 bloom gemma2; do
    data=text.txt
    [ $model = gpt2 ] || data=pairs.jsonl # documents in a row, targets that do not count
    for mesh in 2:18 3:33 4:28; do # SP:LENGTH
        IFS=: read -r sp length <<< "$mesh"
        train 1 one.json $model-one "$length" --model_config $model.json --data $data --steps 3 --eval_interval 3 --eval_fraction 0.1 ||
            fail "$model on one rank" $model-one.log
        for halves in true false; do
            config ring.json 1 "$sp" $halves
            train "$sp" ring.json $model-ring "$length" --model_config $model.json --data $data --steps 3 --eval_interval 3 --eval_fraction 0.1 ||
                fail "$model, $sp ranks, halves $halves" $model-ring.log
            near $model-one $model-ring ||
                fail "$model, $sp ranks, halves $halves: $(losses $model-one | tr '\n' ' ') $(losses $model-ring | tr '\n' ' ')"
        done
    done
done

# sinks of scores (gpt-oss), a window in every second layer
cat > oss.json <<'EOM'
{"model_type": "gpt_oss", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
 "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 9,
 "rms_norm_eps": 1e-5, "tie_word_embeddings": false, "layer_types": ["sliding_attention", "full_attention"], "swiglu_limit": 7.0,
 "attention_bias": true, "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64, "beta_fast": 32.0,
 "beta_slow": 1.0, "truncate": false}}
EOM
train 1 one.json oss-one 28 --model_config oss.json --data pairs.jsonl --steps 3 || fail "gpt-oss on one rank" oss-one.log
for mesh in 2:1:true 4:2:true 4:4:false; do # RANKS:TP:HALVES
    IFS=: read -r ranks tp halves <<< "$mesh"
    config oss-ring.json 2 $((ranks / tp)) "$halves" ", \"tensor_parallel\": {\"autotp_size\": $tp}"
    [ "$tp" -lt 4 ] || config oss-ring.json 3 "$ranks" "$halves"
    train "$ranks" oss-ring.json oss-ring 28 --model_config oss.json --data pairs.jsonl --steps 3 || fail "gpt-oss, mesh $mesh" oss-ring.log
    near oss-one oss-ring || fail "gpt-oss, mesh $mesh: $(losses oss-one | tr '\n' ' ') $(losses oss-ring | tr '\n' ' ')"
done

# the same bits in every stage, on any number of threads, with recomputation, resumed
first=""
for run in 0:1: 1:2: 2:1: 3:2: '3:1:, "activation_checkpointing": {"recompute": "full"}' '2:1:, "zero_optimization": {"stage": 2, "overlap_comm": true}'; do
    IFS=: read -r stage threads keys <<< "$run"
    config same.json "$stage" 2 true "$keys"
    if [[ $keys == *zero_optimization* ]]; then
        sed -i "s/ \"zero_optimization\": {\"stage\": $stage}, \"seq/ \"seq/" same.json
    fi
    train 4 same.json same 22 --model_config llama.json --data text.txt --steps 3 --threads "$threads" || fail "stage $run" same.log
    hash=$(weights same)
    [ "${first:=$hash}" = "$hash" ] || fail "stage $run has other bits"
done
config three.json 3 2 true
train 4 three.json parts 22 --model_config llama.json --data text.txt --steps 1 || fail "one step" parts.log
train 4 three.json parts 22 --model_config llama.json --data text.txt --steps 3 --resume || fail "resumed" parts.log
[ "$(weights parts)" = "$first" ] || fail "a resumed run has other bits"
# goes on by heads and on one rank, and says so
train 1 one.json parts 22 --model_config llama.json --data text.txt --steps 4 --resume || fail "resumed on one rank" parts.log
grep -q 'saved with sequence_parallel_size 2' parts.log || fail "no notice of the other mesh" parts.log

# keys and values are not gathered: five heads, which four ranks do not divide, are shared by queries, and the plan gathers keys and values
# of the whole sequence, 2 layers x 2 x T x 12 x 4 bytes; a ring only ever has parts, and what a rank holds of a sequence four times
# as long on four times the ranks stays the same
plan() { # OUTPUT, RANKS, LENGTH, FORM
    cat > plan.json <<EOM
{"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "sequence_parallel_size": $2,
 "sequence_parallel": {"attention": "$4"}, "zero_optimization": {"stage": 1}}
EOM
    "$build/ds_plan" --model_config llama.json --deepspeed_config plan.json --seq_length "$3" --world_size "$2" > "$1" || fail "ds_plan $4" "$1"
}
sent() { awk -v op="$2" '$1 == op && $2 == "sp" && ($3 == "forward" || $3 == "backward") {n += $4} END {print n + 0}' "$1"; }
activations() { awk '$1 == "activations" && NF == 2 {print int($2 * 100)}' "$1"; }
plan gathered.txt 4 8192 ulysses
plan ring.txt 4 8192 ring
plan longer.txt 16 32768 ring
[ "$(sent gathered.txt all_gather)" -gt 0 ] || fail "by queries, keys are gathered" gathered.txt
[ "$(sent ring.txt all_gather)" = 0 ] || fail "a ring gathers" ring.txt
[ "$(sent ring.txt shift)" = $((2 * 2 * 3 + 2 * (2 * 3 + 2 * 4))) ] || fail "shifts: $(sent ring.txt shift)" ring.txt
[ "$(activations ring.txt)" -lt "$(activations gathered.txt)" ] || fail "activations: $(activations ring.txt), gathered $(activations gathered.txt)"
[ "$(activations longer.txt)" -le $(($(activations ring.txt) * 102 / 100)) ] ||
    fail "activations grow with the sequence: $(activations ring.txt), $(activations longer.txt)"
# beside tp, heads stay cut by it, where by heads along both axes they are gathered
cat > eight.json <<'EOM'
{"model_type": "llama", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 8,
 "num_key_value_heads": 4, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": false}
EOM
config both.json 1 2 true ', "tensor_parallel": {"autotp_size": 2}'
"$build/ds_plan" --model_config eight.json --deepspeed_config both.json --seq_length 32 --world_size 4 > both.txt || fail "ds_plan both" both.txt
grep -q 'shift  *sp  *forward  *4 ' both.txt || fail "no ring beside tp" both.txt
! grep -qE 'all_gather +sp,tp +(forward|backward)' both.txt || fail "heads are gathered beside tp" both.txt
train 1 one.json eight-one 34 --model_config eight.json --data text.txt --steps 3 || fail "one rank" eight-one.log
train 4 both.json eight-both 34 --model_config eight.json --data text.txt --steps 3 || fail "a ring beside tp" eight-both.log
near eight-one eight-both || fail "a ring beside tp: $(losses eight-one | tr '\n' ' ') $(losses eight-both | tr '\n' ' ')"

# refused by name
config no.json 0 3 true
! train 3 no.json no 32 --model_config llama.json --data text.txt --steps 1 || fail "a length that three ranks do not divide"
grep -q 'sequence_parallel_size is 3, which does not divide the seq_length 32' no.log || fail "no message" no.log
sed 's/"ring"/"rings"/' ring.json > no.json
! train 2 no.json no 32 --model_config llama.json --data text.txt --steps 1 || fail "an attention that is none"
grep -q 'sequence_parallel.attention' no.log || fail "no message" no.log
config no.json 0 2 true
! "$build/ds_plan" --model_config "$DS_SOURCE_DIR/test/golden/model_config/bert/config.json" --deepspeed_config no.json --seq_length 32 \
    --world_size 2 > no.log 2>&1 || fail "an encoder in halves"
grep -q 'read whole, which sequence_parallel.load_balance does not go with; set it to false' no.log || fail "no message of an encoder" no.log
echo "ring attention: passed"
