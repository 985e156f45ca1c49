#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# QLoRA of a Llama of 1,033 million parameters (random weights, bf16, 512 tokens, rank 8, NF4) in 2 GiB, its memory within 3 % of the
# plan. Memory is what the process has for itself (anonymous, of smaps_rollup), sampled ten times a second; pages of the model's file,
# which the kernel may drop, are not in it. Usage: qlora_1b.sh BUILD. Writes 2 GB into $TMPDIR; minutes.
set -euo pipefail
build=$(realpath "$1")
[ -x "$build/ds_train" ] || { echo "skipped: ds_train is not built"; exit 77; }
scratch=$(mktemp -d)
run=
trap '[ -z "$run" ] || kill "$run" 2> /dev/null || true; rm -rf "$scratch"' EXIT
cd "$scratch"
python3 - << 'PY'
import json
import os
import random
import struct

H, I, L, HEADS, KV, V = 2048, 5632, 20, 32, 8, 32000
D = H // HEADS
config = dict(model_type="llama", architectures=["LlamaForCausalLM"], vocab_size=V, hidden_size=H, intermediate_size=I,
              num_hidden_layers=L, num_attention_heads=HEADS, num_key_value_heads=KV, max_position_embeddings=2048,
              rms_norm_eps=1e-5, hidden_act="silu", tie_word_embeddings=False, torch_dtype="bfloat16")
layer = {"self_attn.q_proj": (H, H), "self_attn.k_proj": (KV * D, H), "self_attn.v_proj": (KV * D, H), "self_attn.o_proj": (H, H),
         "mlp.gate_proj": (I, H), "mlp.up_proj": (I, H), "mlp.down_proj": (H, I), "input_layernorm": (H,), "post_attention_layernorm": (H,)}
tensors = {"model.embed_tokens.weight": (V, H), "model.norm.weight": (H,), "lm_head.weight": (V, H)}
for n in range(L):
    tensors.update({f"model.layers.{n}.{name}.weight": shape for name, shape in layer.items()})
os.mkdir("model")
json.dump(config, open("model/config.json", "w"))
rng = random.Random(1)
noise = b"".join(struct.pack("<f", rng.gauss(0, 0.02))[2:] for _ in range(100003))  # bf16: the upper half of a float
noise *= 30
one = struct.pack("<f", 1.0)[2:]
header, at, total = {}, 0, 0
for name, shape in tensors.items():
    count = shape[0] * (shape[1] if len(shape) > 1 else 1)
    header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + 2 * count]}
    at, total = at + 2 * count, total + count
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
with open("model/model.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text)
    for name, shape in tensors.items():
        left = shape[0] * shape[1] * 2 if len(shape) > 1 else 0
        f.write(one * shape[0] if len(shape) == 1 else b"")
        while left > 0:
            f.write(noise[:left])
            left -= len(noise)
print(f"{total / 1e6:.0f} million parameters")
PY
cat > config.json << 'JSON'
{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "bf16": {"enabled": true},
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "activation_checkpointing": {"recompute": "full"}}
JSON
awk 'BEGIN { srand(5); for (i = 0; i < 2000; ++i) printf "%c", 97 + int(rand() * 26) }' > text.txt
"$build/ds_train" --model model --tokenizer bytes --data text.txt --deepspeed_config config.json --seq_length 512 --steps 2 --lora 8 \
    --load_in_4bit --output tuned > log 2>&1 &
run=$!
peak=0
while kill -0 "$run" 2> /dev/null; do
    now=$(awk '/^Anonymous:/ { print $2 }' "/proc/$run/smaps_rollup" 2> /dev/null || true)
    [ "${now:-0}" -le "$peak" ] || peak=$now
    sleep 0.1
done
wait "$run" || { cat log; exit 1; }
run=
grep -E '^step|^summary' log
planned=$(sed -nE '1s/.*"planned_bytes":([0-9]+).*/\1/p' tuned/history.jsonl)
awk -v peak="$peak" -v planned="$planned" 'BEGIN {
    mib = peak / 1024; plan = planned / 1048576
    printf "%.0f MiB taken at most, %.0f MiB planned: %.3f\n", mib, plan, mib / plan
    exit !(mib <= 2048 && mib / plan > 0.97 && mib / plan < 1.03) }'
