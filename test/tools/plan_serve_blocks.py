# SPDX-License-Identifier: Apache-2.0
"""A folder of GPTQ of random matrices, and a GGUF file of it; what ds_plan serve --quantize file says of them, and what ds_serve takes when
all its positions were used. Usage: plan_serve_blocks.py BUILD FOLDER"""
import http.client
import json
import os
import re
import struct
import subprocess
import sys

BUILD, FOLDER = sys.argv[1:3]
HIDDEN, INNER, LAYERS, GROUP, VOCAB, LENGTH = 1024, 2816, 6, 128, 320, 512


def write_model():
    """Zero points of 8, scales of 2^-9: q4_0 exactly. Embeddings and head are in fp16."""
    tensors = {}

    def matrix(name, n_in, n_out):
        tensors[name + ".qweight"] = ("I32", [n_in // 8, n_out], os.urandom(n_in * n_out // 2))
        tensors[name + ".qzeros"] = ("I32", [n_in // GROUP, n_out // 8], b"\x77" * (n_in // GROUP * n_out // 2))  # one is added
        tensors[name + ".scales"] = ("F16", [n_in // GROUP, n_out], struct.pack("<e", 2.0**-9) * (n_in // GROUP * n_out))
        tensors[name + ".g_idx"] = ("I32", [n_in], b"".join(struct.pack("<i", i // GROUP) for i in range(n_in)))

    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for name in "qkvo":
            matrix(f"{at}self_attn.{name}_proj", HIDDEN, HIDDEN)
        matrix(at + "mlp.gate_proj", HIDDEN, INNER)
        matrix(at + "mlp.up_proj", HIDDEN, INNER)
        matrix(at + "mlp.down_proj", INNER, HIDDEN)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}{name}.weight"] = ("F16", [HIDDEN], struct.pack("<e", 1.0) * HIDDEN)
    tensors["model.norm.weight"] = ("F16", [HIDDEN], struct.pack("<e", 1.0) * HIDDEN)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = ("F16", [VOCAB, HIDDEN], b"".join(struct.pack("<e", (i % 17 - 8) / 64) for i in range(VOCAB * HIDDEN)))
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(FOLDER, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))
    with open(os.path.join(FOLDER, "config.json"), "w", encoding="utf-8") as f:
        json.dump({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": INNER,
                   "num_hidden_layers": LAYERS, "num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": LENGTH, "rms_norm_eps": 1e-5,
                   "hidden_act": "silu", "tie_word_embeddings": False, "rope_theta": 10000.0, "torch_dtype": "float16",
                   "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True, "checkpoint_format": "gptq"}}, f)


def planned(model, *flags):
    run = subprocess.run([os.path.join(BUILD, "ds_plan"), "serve", "--model", model, *SIZES, "--json", "-", *flags], capture_output=True, text=True)
    if run.returncode != 0:
        raise SystemExit(f"FAILED: ds_plan serve {model} {flags}: {run.stderr}")
    return json.loads(run.stdout)


def taken(model, *flags):
    """Bytes of a server's process when all its positions were used."""
    server = subprocess.Popen([os.path.join(BUILD, "ds_serve"), "--model", model, "--tokenizer", "bytes", "--served_model_name", "m", "--port", "0", *SIZES, *flags],
                              stdout=subprocess.PIPE, text=True)
    try:
        port = int(re.search(r":(\d+)\n", server.stdout.readline()).group(1))
        ids = [[(7 * i + k) % 256 for i in range(LENGTH - 1)] for k in range(2)]
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        for path, body in (("completions", {"prompt": ids, "max_tokens": 1}), ("embeddings", {"input": ids})):
            c.request("POST", f"/v1/{path}", json.dumps({"model": "m", **body}))
            answer = c.getresponse()
            text = answer.read().decode()
            if answer.status != 200:
                raise SystemExit(f"FAILED: {answer.status} {text}")
        with open(f"/proc/{server.pid}/smaps", encoding="utf-8") as f:
            areas = re.findall(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+ *([^\n]*)\n(.*?)VmFlags", f.read(), re.M | re.S)
        return 1024 * sum(int(re.search(r"^Rss: +(\d+)" if "model.safetensors" in name or ".gguf" in name else r"^Anonymous: +(\d+)", text, re.M).group(1))
                          for name, text in areas)
    finally:
        server.terminate()
        server.wait(30)


SIZES = ("--dtype", "bf16", "--kv_tokens", str(2 * LENGTH), "--max_length", str(LENGTH), "--max_sequences", "2", "--threads", "2")
write_model()
matrices = LAYERS * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * INNER)
rest = 2 * (2 * VOCAB * HIDDEN + (2 * LAYERS + 1) * HIDDEN)  # in bf16


def compare(what, model, weights, *flags):
    plan, real = planned(model, *flags), taken(model, *flags)
    print(f"{what}: weights {plan['weights']} bytes, planned {plan['need'] / 2**20:.1f} MiB, the process takes {real / 2**20:.1f} MiB")
    if plan["weights"] != weights:
        raise SystemExit(f"FAILED: {what}: weights are {weights} bytes: {plan}")
    if not abs(plan["need"] / real - 1) < 0.02:
        raise SystemExit(f"FAILED: {what}: the plan is another than the process")


real = planned(FOLDER)
if real["weights"] < 2 * matrices:
    raise SystemExit(f"FAILED: {matrices} values in bf16: {real}")
compare("GPTQ", FOLDER, matrices * 18 // 32 + rest, "--quantize", "file")
file = os.path.join(FOLDER, "m.q4_0.gguf")
made = subprocess.run([os.path.join(BUILD, "ds_quantize"), "--type", "q4_0", "--no_tokenizer", FOLDER, file], capture_output=True, text=True)
if made.returncode != 0:
    raise SystemExit(f"FAILED: {made.stderr}")
# the table that is looked up is of real numbers, the output projection in q6_k
compare("GGUF", file, matrices * 18 // 32 + VOCAB * HIDDEN * 210 // 256 + 2 * (VOCAB * HIDDEN + (2 * LAYERS + 1) * HIDDEN), "--quantize", "file")
if planned(file)["weights"] != real["weights"]:
    raise SystemExit(f"FAILED: a file as real numbers: {planned(file)} {real}")
