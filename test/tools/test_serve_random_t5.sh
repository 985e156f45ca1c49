#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Random requests of ds_serve on T5 alone and in a crowd, vectors, beams and adapters among them: serve_random.py.
# Usage: test_serve_random_t5.sh BUILD [RUNS [SEED [SECONDS]]] (the long test takes other seeds each time, for so long)
set -u
build=$(realpath "$1")
[ -x "$build/ds_serve" ] || { echo "ds_serve is not built: libmicrohttpd-dev is missing"; exit 77; }
command -v python3 > /dev/null || { echo "no python3"; exit 77; }
source=$(cd "$(dirname "$0")/../.." && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
cat > t5.json <<END
{"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "vocab_size": 257, "d_model": 32, "d_kv": 8, "d_ff": 48,
 "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4, "dropout_rate": 0.1, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": false,
 "pad_token_id": 0, "eos_token_id": 256, "decoder_start_token_id": 0}
END
awk 'BEGIN {for (i = 0; i < 80; ++i) printf "{\"prompt\": \"the fox %d goes\", \"completion\": \"up and down %d\"}\n", i, i * 7 % 80}' > pairs.jsonl
"$build/ds_train" --model_config t5.json --tokenizer bytes --data pairs.jsonl --seq_length 48 --micro_batch 8 --max_steps 20 \
    --learning_rate 1e-2 --output t5 > log 2>&1 || { cat log; echo "training"; exit 1; }
for n in 1 2; do
    awk -v n="$n" 'BEGIN {for (i = 0; i < 40; ++i) printf "{\"prompt\": \"the fox %d goes\", \"completion\": \"zigzag %d\"}\n", i, n}' > "lora$n.jsonl"
    "$build/ds_train" --model t5 --lora 4 --tokenizer bytes --data "lora$n.jsonl" --seq_length 48 --micro_batch 4 --max_steps 8 \
        --learning_rate 2e-2 --output "lora$n" > log 2>&1 || { cat log; echo "training an adapter"; exit 1; }
done
for ((i = 0; i < ${2:-1} || SECONDS < ${4:-0}; ++i)); do
    python3 "$source/test/tools/serve_random.py" "$build/ds_serve" t5 lora1 lora2 40 $((${3:-32} + i)) || exit 1
done
