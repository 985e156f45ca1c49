#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow tree
# The Python package, installed by pip into an environment of its own without a network, and used from another folder: its
# layouts are the C compiler's, its tests pass, ranks of the launcher train alike, the README's example works.
set -euo pipefail
build=$1
python3 -m venv --help > /dev/null 2>&1 && python3 -c 'import ensurepip' 2> /dev/null || { echo "python3-venv is not installed"; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE PYTHONPATH
export PIP_NO_INDEX=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1
python3 -m venv "$scratch/venv"
python=$scratch/venv/bin/python
"$python" -m pip install -q "$DS_SOURCE_DIR/python" > "$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }
[ -e "$(cd / && DEEPSPEED_NATIVE_LIBRARY=$build/libdeepspeed.so "$python" -c 'import deepspeed_native as d; print(d.__path__[0])')/py.typed" ]
left=$(find "$DS_SOURCE_DIR/python" -type f -newer "$scratch/venv/pyvenv.cfg")
[ -z "$left" ] || { echo "pip left files: $left"; exit 1; }

export DEEPSPEED_NATIVE_LIBRARY=$build/libdeepspeed.so
cd "$scratch"
for test in "$DS_SOURCE_DIR"/test/python/test_*.py; do
    "$python" "$test" > log 2>&1 || { cat log; exit 1; }
done

# Two ranks: the same loss on both, and that of the same rows on one.
cat > ranks.py << 'PY'
import sys
import deepspeed_native as ds
e = ds.initialize(model=sys.argv[1], config={"train_batch_size": 4, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
                                             "zero_optimization": {"stage": 3}}, seq_length=8)
rows = 4 // e.world_size
ids = [[(7 * i + r) % 90 for i in range(8)] for r in range(e.rank * rows, e.rank * rows + rows)]
losses = [e.train_batch([{"input_ids": ids, "labels": ids}]) for _ in range(3)]
print("losses", *(f"{x:.4f}" for x in losses), "ids", *e.generate([1, 2, 3], 6))
PY
model=$DS_SOURCE_DIR/test/golden/parity/llama3
"$python" ranks.py "$model" > one 2>&1 || { cat one; exit 1; }
"$build/deepspeed" --num_gpus 2 "$python" ranks.py "$model" > two 2>&1 || { cat two; exit 1; }
[ "$(grep -o 'losses.*' two | sort -u)" = "$(grep -o 'losses.*' one)" ] && [ "$(grep -c losses two)" = 2 ] || { cat one two; exit 1; }

# A Loader gives each rank samples of its own: two ranks see what one does.
seq 1 60 | sed 's/.*/{"text": "row & of a small file"}/' > own.jsonl
cat > own.py << 'PY'
import sys
import deepspeed_native as ds
e = ds.initialize(model={"model_type": "gpt2", "vocab_size": 257, "n_positions": 32, "n_embd": 16, "n_layer": 1, "n_head": 2},
                  config={"train_batch_size": 4, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}}, seq_length=16)
data = ds.Loader(ds.Dataset("own.jsonl", ds.Tokenizer("bytes"), 16), batch=4 // e.world_size, seed=5)
print("losses", *(f"{e.train_batch(data):.3f}" for _ in range(4)))
PY
"$python" own.py > one 2>&1 || { cat one; exit 1; }
"$build/deepspeed" --num_gpus 2 "$python" own.py > two 2>&1 || { cat two; exit 1; }
[ "$(grep -o 'losses.*' two | sort -u)" = "$(grep -o 'losses.*' one)" ] && [ "$(grep -c losses two)" = 2 ] || { cat one two; exit 1; }

# The README's example, as it stands there.
awk '/^```python/ {inside = 1; next} /^```/ {inside = 0} inside' "$DS_SOURCE_DIR/README.md" > example.py
[ -s example.py ] || { echo "the README has no example in Python"; exit 1; }
mkdir my_model
cat > my_model/config.json << 'JSON'
{"model_type": "llama", "vocab_size": 320, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
 "max_position_embeddings": 64}
JSON
seq 1 400 | sed 's/.*/{"text": "row & of a small file"}/' > rows.jsonl
"$python" example.py > log 2>&1 || { cat log; exit 1; }
