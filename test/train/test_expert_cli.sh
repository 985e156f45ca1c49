#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Expert parallelism by configuration: a model with experts trained on 1, 2 and 4 ranks with and without it, over every ZeRO stage,
# beside sequence parallelism, resumed on another mesh, exported; what it cannot do is refused by name.
# Usage: test_expert_cli.sh BUILD
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
cat > model.json <<'END'
{"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "vocab_size": 256, "hidden_size": 32, "intermediate_size": 48,
 "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "num_local_experts": 4,
 "num_experts_per_tok": 2, "output_router_logits": true, "router_aux_loss_coef": 0.02, "rms_norm_eps": 1e-5, "hidden_act": "silu",
 "tie_word_embeddings": false}
END
head -c 40000 "$DS_SOURCE_DIR/data/tinyshakespeare.txt" > text.txt
config() { # FILE, STAGE, EP, OTHER KEYS
    cat > "$1" <<END
{"train_batch_size": 8, "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
 "zero_optimization": {"stage": $2}, "expert_parallel": {"enabled": true, "autoep_size": $3} ${4:-}}
END
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
same() { # A, B: losses and weights, bit for bit
    [ "$(losses "$1")" = "$(losses "$2")" ] && [ "$(weights "$1")" = "$(weights "$2")" ]
}

config one.json 0 1
config ep2.json 0 2
train 1 one.json one --model_config model.json --steps 3 || fail "one rank" one.log
train 2 one.json dp2 --model_config model.json --steps 3 || fail "two data-parallel ranks" dp2.log
train 4 one.json dp4 --model_config model.json --steps 3 || fail "four data-parallel ranks" dp4.log
train 2 ep2.json ep2 --model_config model.json --steps 3 || fail "ep 2" ep2.log
near one ep2 || fail "other losses than one rank: $(losses one | tr '\n' ' ') $(losses ep2 | tr '\n' ' ')"
same dp2 ep2 || fail "ep 2 has other bits than two data-parallel ranks"
grep -q 'expert parallel: 2 ranks share 6 of 23 parameters, [0-9]* % of the elements$' ep2.log || fail "what is shared is not said" ep2.log
for stage in 0 1 2 3; do
    ep=$((stage % 2 == 0 ? 2 : 4))
    config four.json $stage $ep
    train 4 four.json four$stage --model_config model.json --steps 3 || fail "stage $stage, ep $ep of 4 ranks" four$stage.log
    same dp4 four$stage || fail "stage $stage, ep $ep of 4 ranks: other bits than four data-parallel ranks"
done

# beside ranks that share sequences, which share the experts too
config sp.json 0 1 ', "sequence_parallel_size": 2'
config epsp.json 2 2 ', "sequence_parallel_size": 2'
train 2 sp.json sp --model_config model.json --steps 3 || fail "sp 2" sp.log
near one sp || fail "sp 2: other losses than one rank: $(losses sp | tr '\n' ' ')"
train 4 sp.json sp4 --model_config model.json --steps 3 || fail "sp 2, dp 2" sp4.log
train 4 epsp.json epsp --model_config model.json --steps 3 || fail "sp 2, ep 2" epsp.log
same sp4 epsp || fail "sp 2: ep has other bits than data parallelism"

# goes on elsewhere, and from a model folder, of which each rank reads its own experts
train 1 one.json short --model_config model.json --steps 2 || fail "two steps" short.log
config three.json 3 4
train 4 three.json short --model_config model.json --steps 3 --resume || fail "resumed on ep 4" short.log
grep -q 'saved with expert_parallel.autoep_size 1; from here on it is 4' short.log || fail "no notice of the other mesh" short.log
near one short || fail "another loss behind a resume"
train 2 ep2.json back --model_config model.json --steps 2 || fail "two steps of ep 2" back.log
train 1 one.json back --model_config model.json --steps 3 --resume || fail "resumed on one rank" back.log
near one back || fail "another loss behind a resume on one rank"
train 2 ep2.json again --model dp2.model --steps 2 || fail "a model folder" again.log
train 2 one.json plain --model dp2.model --steps 2 || fail "a model folder on data-parallel ranks" plain.log
same plain again || fail "a model folder gives other bits on ep"
"$build/ds_plan" --model_config model.json --deepspeed_config three.json --world_size 4 --seq_length 32 > plan.txt || fail "no plan" plan.txt
grep -q 'dispatch_rows' plan.txt || fail "the plan does not count what goes to experts" plan.txt

# rows in rounds: a tile of positions at a time, in less room
config tiles.json 1 2 ', "mlp_tile_tokens": 8, "activation_checkpointing": {"recompute": "full"}'
train 2 tiles.json tiles --model_config model.json --steps 3 || fail "tiles" tiles.log
near one tiles || fail "tiles: other losses than one rank"

# folded over ranks that share layers, and sequences
config fold.json 3 2 ', "tensor_parallel": {"autotp_size": 2}'
train 2 fold.json fold --model_config model.json --steps 2 || fail "ep folded over tp" fold.log
grep -q 'expert parallel: 2 ranks share 6 of 23 parameters' fold.log || fail "folded: what is shared is not said" fold.log
train 1 one.json fold --model_config model.json --steps 3 --resume || fail "folded: resumed on one rank" fold.log
near one fold || fail "ep folded over tp: other losses than one rank"
config fold4.json 2 4 ', "tensor_parallel": {"autotp_size": 2}, "sequence_parallel_size": 2'
train 4 fold4.json fold4 --model_config model.json --steps 3 || fail "ep folded over tp and sp" fold4.log
grep -q 'expert parallel: 4 ranks share 6 of 23 parameters' fold4.log || fail "folded over tp and sp" fold4.log
near one fold4 || fail "ep folded over tp and sp: other losses than one rank"
config fold8.json 1 4 ', "tensor_parallel": {"autotp_size": 2}'
train 4 fold8.json fold8 --model_config model.json --steps 3 || fail "ep folded over tp and dp" fold8.log
near dp2 fold8 || fail "ep folded over tp and dp: other losses than data parallelism"
"$build/ds_plan" --model_config model.json --deepspeed_config fold.json --world_size 2 --seq_length 32 > fold.txt || fail "no plan of folded experts" fold.txt
grep -q 'dispatch_rows.*tp' fold.txt || fail "the plan sends no rows along tp" fold.txt

# refused by name
config bad.json 0 3
! train 4 bad.json bad --model_config model.json --steps 1 || fail "ep 3 of 4 ranks was accepted"
grep -q 'expert_parallel.autoep_size: expected a divisor of the world size, 4, found 3; the nearest below is 2' bad.log || fail "ep 3 of 4 ranks" bad.log
sed 's/"num_local_experts": 4/"num_local_experts": 3/' model.json > odd.json
! train 2 ep2.json odd --model_config odd.json --steps 1 || fail "3 experts on 2 ranks were accepted"
grep -q '2 ranks (expert_parallel.autoep_size) do not divide the 3 experts' odd.log || fail "3 experts" odd.log
train 2 sp.json odd2 --model_config odd.json --steps 3 || fail "3 experts on ranks that share sequences" odd2.log
train 1 one.json odd1 --model_config odd.json --steps 3 || fail "3 experts on one rank" odd1.log
near odd1 odd2 || fail "3 experts on sp 2: other losses than one rank"
sed -e 's/mixtral/llama/;s/MixtralForCausalLM/LlamaForCausalLM/' model.json > dense.json
! train 2 ep2.json dense --model_config dense.json --steps 1 || fail "a model without experts was accepted"
grep -q 'autoep_size is 2, but the model has no experts' dense.log || fail "no experts" dense.log

# how tokens are routed, in place of what the model says: as a model that says it
key() { sed 's/"autoep_size": 2/&, '"$1"'/' ep2.json > key.json; }
sed 's/"num_experts_per_tok": 2/"num_experts_per_tok": 1/' model.json > top1.json
train 2 ep2.json top1 --model_config top1.json --steps 2 || fail "a model of one expert a token" top1.log
key '"top_k": 1'
train 2 key.json key1 --model_config model.json --steps 2 || fail "top_k 1" key1.log
grep -q 'expert_parallel says how tokens are routed in this run' key1.log || fail "no notice of the routing" key1.log
same top1 key1 || fail "top_k 1 is not what a model of one expert a token does"
! near one key1 || fail "top_k 1 changes nothing"
! train 2 ep2.json key1 --model_config model.json --steps 3 --resume || fail "resumed with other experts a token"
grep -q 'was saved with expert_parallel.top_k 1, this run has "auto"' key1.log || fail "resumed with other experts a token" key1.log
sed 's/"enabled": true/"enabled": false/' key.json > off.json
! train 1 off.json key1 --model_config model.json --steps 3 --resume || fail "resumed with the section off"
grep -q 'was saved with expert_parallel.top_k 1, this run has "auto"' key1.log || fail "resumed with the section off" key1.log
! train 2 key.json key3 --model_config dense.json --steps 1 || fail "routing of a model without experts was accepted"
sed 's/"autoep_size": 2/"autoep_size": 1, "top_k": 1/' ep2.json > alone.json
! train 1 alone.json key4 --model_config dense.json --steps 1 || fail "routing of a model without experts was accepted"
grep -q 'how tokens are routed, but the model has no experts' key4.log || fail "routing without experts" key4.log
! train 1 alone.json key6 --model_config dense.json --teacher dp2.model --steps 1 || fail "routing of a teacher was accepted"
grep -q 'how tokens are routed, but the model has no experts' key6.log || fail "routing of a teacher" key6.log
key '"top_k": 5'
! train 2 key.json key5 --model_config model.json --steps 1 || fail "top_k 5 of 4 experts was accepted"
grep -q 'expert_parallel.top_k: expected at most the 4 experts of a layer, found 5' key5.log || fail "top_k 5" key5.log
key '"score_apply": "pre", "score_func": "sigmoid", "num_expert_groups": 2, "num_limited_groups": 1'
sed 's/"autoep_size": 2/"autoep_size": 1/' key.json > alone.json
train 1 alone.json pre1 --model_config model.json --steps 3 || fail "keys of routing on one rank" pre1.log
train 2 key.json pre2 --model_config model.json --steps 3 || fail "keys of routing on ep 2" pre2.log
near pre1 pre2 || fail "keys of routing: ep 2 has other losses than one rank: $(losses pre1 | tr '\n' ' ') $(losses pre2 | tr '\n' ' ')"
! near pre1 one || fail "keys of routing change nothing"
echo "expert parallelism: passed"
