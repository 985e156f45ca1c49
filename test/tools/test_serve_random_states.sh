#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Random requests of ds_serve on a model with linear attention alone and in a crowd, with snapshots of states, guesses and a drafter:
# serve_random.py.
# Usage: test_serve_random_states.sh BUILD [RUNS [SEED [SECONDS]]] (the long test takes other seeds each time, for so long)
set -u
build=$(realpath "$1")
[ -x "$build/ds_serve" ] || { echo "ds_serve is not built: libmicrohttpd-dev is missing"; exit 77; }
command -v python3 > /dev/null || { echo "no python3"; exit 77; }
source=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=test/common/tiny_llama.sh
. "$source/test/common/tiny_llama.sh" 1 16 2 512
head -c 20000 "$source/data/tinyshakespeare.txt" > data.txt
cat > next.json <<'END'
{"model_type": "qwen3_next", "vocab_size": 320, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
 "num_key_value_heads": 2, "head_dim": 8, "mlp_only_layers": [0, 1, 2], "layer_types": ["linear_attention", "full_attention", "linear_attention"],
 "linear_key_head_dim": 8, "linear_value_head_dim": 6, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "max_position_embeddings": 512}
END
for model in next llama; do
    "$build/ds_train" --model_config $model.json --tokenizer bytes --data data.txt --seq_length 64 --micro_batch 8 --max_steps 20 \
        --learning_rate 1e-2 --output $model > log 2>&1 || fail "training $model"
done
for n in 1 2; do
    python3 -c "print(('zigzag $n goes up and down, ' * 30 + chr(10)) * 20)" > "lora$n.txt"
    "$build/ds_train" --model next --lora 4 --tokenizer bytes --data "lora$n.txt" --seq_length 64 --micro_batch 4 --max_steps 8 \
        --learning_rate 2e-2 --output "lora$n" > log 2>&1 || fail "training an adapter"
done
for ((i = 0; i < ${2:-1} || SECONDS < ${4:-0}; ++i)); do
    python3 "$source/test/tools/serve_random.py" "$build/ds_serve" next lora1 lora2 40 $((${3:-32} + i)) llama || exit 1
done
