#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Sequences in chunks (sequence_parallel.chunk_size, FPDT) by configuration: models trained in one piece and in chunks, on 1, 2 and 4 ranks
# that share sequences by heads and in rings, beside experts and stages, over ZeRO stages, recomputation, offload to memory and disk, a resume;
# windows, sinks, documents, dropout, lengths with a rest; what the plan says of memory. Usage: test_chunks_cli.sh BUILD
#
# Losses are near those in one piece: of the first step within 2e-6 of themselves (a merge of a few parts is a handful of roundings in each
# of two layers, and a loss is a mean over tokens; test_ring_cli.sh), behind it 1e-4. Over stages, offload, recomputation: the same bits.
set -euo pipefail
build=$(realpath "$1")
# shellcheck source=test/common/sequence_runs.sh
. "$DS_SOURCE_DIR/test/common/sequence_runs.sh"
cat > llama.json <<'EOM'
{"model_type": "llama", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
 "num_key_value_heads": 2, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": false}
EOM
cat > gemma2.json <<'EOM'
{"model_type": "gemma2", "vocab_size": 256, "hidden_size": 48, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
 "num_key_value_heads": 2, "head_dim": 8, "query_pre_attn_scalar": 5, "sliding_window": 10, "attn_logit_softcapping": 2.0,
 "final_logit_softcapping": 3.0, "max_position_embeddings": 128}
EOM
cat > falcon.json <<'EOM'
{"model_type": "falcon", "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "alibi": true, "multi_query": false,
 "new_decoder_architecture": false, "parallel_attn": false, "bias": true, "layer_norm_epsilon": 1e-5, "max_position_embeddings": 128}
EOM
cat > gpt_oss.json <<'EOM'
{"model_type": "gpt_oss", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
 "num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 9, "max_position_embeddings": 128,
 "rms_norm_eps": 1e-5}
EOM
cat > qwen3_next.json <<'EOM'
{"model_type": "qwen3_next", "vocab_size": 256, "hidden_size": 48, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
 "num_key_value_heads": 2, "head_dim": 16, "mlp_only_layers": [0, 1], "linear_key_head_dim": 8, "linear_value_head_dim": 6,
 "linear_num_key_heads": 2, "linear_num_value_heads": 2, "max_position_embeddings": 128}
EOM
config() { # FILE, STAGE, SP, KEYS OF sequence_parallel, OTHER KEYS
    cat > "$1" <<EOM
{"train_batch_size": 4, "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
 "zero_optimization": {"stage": $2}, "sequence_parallel_size": $3, "sequence_parallel": {$4} ${5:-}}
EOM
}
same() { [ "$(weights "$1")" = "$(weights "$2")" ] || fail "$2: other weights than $1" "$2.log"; }
text="--data text.txt --max_steps 3"

# One rank, odd chunks and a rest of 3: near the run in one piece.
config whole.json 0 1 ''
config odd.json 0 1 '"chunk_size": 6'
train 1 whole.json whole 45 --model_config llama.json $text || fail "in one piece" whole.log
train 1 odd.json odd 45 --model_config llama.json $text || fail "in chunks of 6" odd.log
near whole odd || fail "chunks of 6: other losses than in one piece" odd.log
[ "$(weights whole)" != "$(weights odd)" ] || fail "chunks of 6: the bits of one piece, so that nothing was cut" odd.log

# Dropout before adapters knows its rows too: it is of a chunk, with the bits of one piece.
lora="$text --lora 4 --lora_dropout 0.3"
train 1 whole.json whole 45 --model_config llama.json $lora || fail "adapters in one piece" whole.log
train 1 odd.json odd 45 --model_config llama.json $lora --print_plan || fail "adapters in chunks of 6" odd.log
near whole odd || fail "adapters in chunks of 6: other losses than in one piece" odd.log
grep -q 'dropout.*\[4,6,64\]' odd.log || fail "adapters in chunks of 6: dropout is of all positions"

# Windows beside soft caps; dropout, whose bits know their rows; documents in a row; sinks and experts with biases: on one rank and on two, by
# heads, and on three in a ring, which do not divide the heads, nor a chunk of 11, of which they have 9.
for model in gemma2 gpt2 llama gpt_oss; do
    data=$text
    [ "$model" != llama ] || data="--data pairs.jsonl --max_steps 3"
    config whole.json 0 1 ''
    config one.json 1 1 '"chunk_size": 8'
    config two.json 3 2 '"chunk_size": 8'
    train 1 whole.json whole 48 --model_config $model.json $data || fail "$model in one piece" whole.log
    train 1 one.json one 48 --model_config $model.json $data || fail "$model in chunks" one.log
    train 2 two.json two 48 --model_config $model.json $data || fail "$model in chunks on two ranks" two.log
    near whole one || fail "$model: other losses in chunks" one.log
    near whole two || fail "$model: other losses in chunks on two ranks" two.log
    config ring.json 1 3 '"chunk_size": 11, "attention": "ring"'
    train 3 ring.json ring 48 --model_config $model.json $data || fail "$model in chunks on a ring" ring.log
    near whole ring || fail "$model: other losses in chunks on a ring" ring.log
done

# Biases rounded to bf16; an adapter with dropout; evaluation; a teacher.
"$build/ds_checkpoint" export whole teacher --overwrite > /dev/null
config whole.json 0 1 ''
beside() { # NAME, MODEL, FLAGS
    local name=$1 model=$2
    shift 2
    train 1 whole.json whole 48 --model_config $model.json "$@" || fail "$name in one piece" whole.log
    train 1 one.json one 48 --model_config $model.json "$@" || fail "$name in chunks" one.log
    near whole one || fail "$name: other losses in chunks" one.log
}
beside falcon falcon $text
beside adapter llama $text --lora 4 --lora_dropout 0.1
beside evaluation llama --data text.txt --max_steps 4 --eval_fraction 0.2 --eval_interval 2
grep -q '"eval_loss"' one.jsonl || fail "no evaluation" one.log
beside distillation llama $text --teacher teacher

# In 16 bits a chunk's keys have their gradient, in fp32, behind all queries that see them, and are rounded to bf16 then: 2^-9 of a mean over tokens.
bf16=', "bf16": {"enabled": true}'
config whole.json 0 1 '' "$bf16"
config one.json 0 1 '"chunk_size": 8' "$bf16"
train 1 whole.json whole 48 --model_config gemma2.json $text || fail "bf16 in one piece" whole.log
train 1 one.json one 48 --model_config gemma2.json $text || fail "bf16 in chunks" one.log
near whole one 0.00195 || fail "bf16: other losses in chunks" one.log

# The same bits over stages, recomputation and wherever what waits is, and behind a resume.
again=',"activation_checkpointing": {"recompute": "full"}'
mkdir disk
config base.json 0 2 '"chunk_size": 128'
train 2 base.json base 512 --model_config llama.json $text || fail "chunks of 128" base.log
for stage in 1 2 3; do
    config stage.json $stage 2 '"chunk_size": 128' "$again"
    train 2 stage.json "stage$stage" 512 --model_config llama.json $text || fail "stage $stage" "stage$stage.log"
    same base "stage$stage"
done
config cpu.json 3 2 '"chunk_size": 128, "offload": "cpu"' "$again, \"device_memory\": 200000000"
config kept.json 0 2 '"chunk_size": 128, "offload": "cpu"' ', "activation_checkpointing": {"cpu_checkpointing": true}, "device_memory": 200000000'
config nvme.json 2 2 '"chunk_size": 128, "offload": "nvme", "nvme_path": "'"$scratch/disk"'"' "$again"
for where in cpu kept nvme; do
    train 2 $where.json $where 512 --model_config llama.json $text || fail "offload $where" $where.log
    same base $where
done
train 2 cpu.json resumed 512 --model_config llama.json --data text.txt --max_steps 2 || fail "before a resume" resumed.log
train 2 cpu.json resumed 512 --model_config llama.json $text --resume || fail "resume" resumed.log
same base resumed

# Memory: what the plan says within 3 %, and less than 0.6 of that in one piece, the layers being most of it.
cat > wide.json <<'EOM'
{"model_type": "llama", "vocab_size": 256, "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 1, "num_attention_heads": 4,
 "num_key_value_heads": 4, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": false}
EOM
memory() { sed -nE 's/.*memory ([0-9.]+) MiB of ([0-9.]+) MiB planned.*/\1 \2/p' "$1.log"; }
config wide_whole.json 0 1 '' "$again"
config wide_chunks.json 0 1 '"chunk_size": 512' "$again"
config wide_cpu.json 0 1 '"chunk_size": 512, "offload": "cpu"' "$again, \"device_memory\": 1000000000"
for run in wide_whole wide_chunks wide_cpu; do
    sed -i 's/"train_batch_size": 4/"train_batch_size": 1/' $run.json
    train 1 $run.json $run 4096 --model_config wide.json --data text.txt --max_steps 1 || fail "$run" $run.log
    memory $run | awk '{exit !($1 > 0.97 * $2 && $1 <= $2)}' || fail "$run: memory and plan, MiB: $(memory $run)"
done
awk -v whole="$(memory wide_whole)" -v chunks="$(memory wide_chunks)" 'BEGIN {split(whole, a); split(chunks, b); exit !(b[1] < 0.6 * a[1])}' ||
    fail "memory in one piece and in chunks, MiB: $(memory wide_whole), $(memory wide_chunks)"

# A chunk is a tile of the feed-forward parts: larger ones change nothing.
config base.json 0 1 '"chunk_size": 8'
config tiled.json 0 1 '"chunk_size": 8' ', "mlp_tile_tokens": 16'
for run in base tiled; do
    train 1 $run.json $run 48 --model_config llama.json $text || fail "$run" $run.log
done
same base tiled

# What does not go: by name, with what does.
refused() { # MESSAGE, KEYS OF sequence_parallel, OTHER KEYS
    config no.json 0 "${4:-1}" "$2" "${3:-}"
    ! train "${4:-1}" no.json no 48 --model_config llama.json $text || fail "no error: $1"
    grep -q "$1" no.log || fail "no message: $1" no.log
}
refused 'raise it to 2' '"chunk_size": 1' '' 2
refused 'expected at most mlp_tile_tokens, 7' '"chunk_size": 8' ', "mlp_tile_tokens": 7'
refused 'set domino to false' '"chunk_size": 8' ', "tensor_parallel": {"autotp_size": 2, "domino": true}' 2
refused 'expected sequence_parallel.chunk_size with it' '"offload": "cpu"'
refused 'both or neither of sequence_parallel.offload' '"chunk_size": 8, "offload": "nvme"'
refused 'set sequence_parallel.attention to "ring"' '"chunk_size": 9' '' 3
config no.json 0 1 '"chunk_size": 8'
! train 1 no.json no 48 --model_config qwen3_next.json $text || fail "no error: a state in chunks"
grep -q 'linear attention; sequences in chunks' no.log || fail "no message: a state in chunks" no.log
config no.json 0 2 ''
! train 2 no.json no 48 --model_config qwen3_next.json $text || fail "no error: a state of two ranks"
grep -q 'linear attention.*sequence_parallel_size 2' no.log || fail "no message: a state of two ranks" no.log
