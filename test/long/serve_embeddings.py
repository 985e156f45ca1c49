# SPDX-License-Identifier: Apache-2.0
"""Vectors of ds_serve and ds_encode by openai's client against transformers. Usage: serve_embeddings.py BUILD SCRATCH"""
import atexit
import json
import os
import random
import re
import subprocess
import sys
import threading

import openai
import torch
import transformers

BUILD, SCRATCH = sys.argv[1:3]
WORDS = "the a fox sun river walks over under quick lazy blue stone and or with 7 12 , . ! ?".split()
KEYS = {"cls": "cls_token", "mean": "mean_tokens", "last": "lasttoken", "max": "max_tokens", "mean_sqrt": "mean_sqrt_len_tokens",
        "weighted": "weightedmean_tokens"}


def pool(rows, how):
    """sentence-transformers' definitions."""
    n = rows.shape[0]
    weights = torch.arange(1, n + 1, dtype=rows.dtype)[:, None]
    return {"cls": lambda: rows[0], "mean": lambda: rows.mean(0), "last": lambda: rows[-1], "max": lambda: rows.max(0).values,
            "mean_sqrt": lambda: rows.sum(0) / n**0.5, "weighted": lambda: (rows * weights).sum(0) / weights.sum()}[how]()


def tokenizer(folder):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    tok = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[]))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tok.decoder = decoders.ByteLevel()
    tok.save(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast"}, f)


def sentence(folder, how, normalize):
    os.makedirs(os.path.join(folder, "1_Pooling"), exist_ok=True)
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling")] + [("2_Normalize", "Normalize")] * normalize
    with open(os.path.join(folder, "modules.json"), "w", encoding="utf-8") as f:
        json.dump([{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"} for i, (path, kind) in enumerate(kinds)], f)
    with open(os.path.join(folder, "1_Pooling", "config.json"), "w", encoding="utf-8") as f:
        json.dump({"word_embedding_dimension": 64, "include_prompt": True, **{f"pooling_mode_{v}": k == how for k, v in KEYS.items()}}, f)


def small(kind, **more):
    common = dict(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=1024,
                  initializer_range=0.2)
    return kind(**{**common, **more})


def models():
    ends = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)
    yield "llama", small(transformers.LlamaConfig, num_key_value_heads=2, **ends)
    yield "qwen3", small(transformers.Qwen3Config, num_key_value_heads=2, head_dim=16, tie_word_embeddings=True, **ends)
    yield "granite", small(transformers.GraniteConfig, num_key_value_heads=2, logits_scaling=8.0, **ends)
    yield "gemma", small(transformers.GemmaConfig, num_key_value_heads=2, head_dim=16, **ends)
    yield "bert", small(transformers.BertConfig, pad_token_id=0)


def start(model, *flags):
    process = subprocess.Popen([os.path.join(BUILD, "ds_serve"), "--model", model, "--served_model_name", "m", "--port", "0", "--dtype", "f32",
                                "--max_length", "512", *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    atexit.register(process.kill)
    line = process.stdout.readline()
    found = re.fullmatch(r"serving m on http://127.0.0.1:(\d+)\n", line)
    assert found, (line, process.stderr.read())
    return process, openai.OpenAI(base_url=f"http://127.0.0.1:{found.group(1)}/v1", api_key="none", max_retries=0, timeout=600)


def near(got, want, what):
    got = torch.tensor(got, dtype=torch.float64)
    worst = (got - want).abs().max().item() / want.abs().max().item()
    assert worst < 2e-5, (what, worst)


def refusals(client):
    for fields in (dict(input=[]), dict(input=""), dict(input=["a", 3]), dict(input=[[1, 2], [999]]), dict(dimensions=65), dict(dimensions=0),
                   dict(input="a" * 513), dict(extra_body={"encoding_format": "int8"}), dict(extra_body={"task": "x"})):
        try:
            client.embeddings.create(**{**dict(model="m", input="a"), **fields})
        except openai.BadRequestError as e:
            assert e.body["message"], e
        else:
            raise AssertionError(fields)


def check(name, config):
    folder = os.path.join(SCRATCH, name)
    torch.manual_seed(3)
    whole = (transformers.AutoModelForMaskedLM if name == "bert" else transformers.AutoModelForCausalLM).from_config(config).eval()
    whole.save_pretrained(folder)
    tokenizer(folder)
    reference = whole.base_model.double()
    rng = random.Random(5)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(1, 60))) for _ in range(12)]
    ids = [transformers.AutoTokenizer.from_pretrained(folder)(t).input_ids for t in texts]
    with torch.no_grad():
        rows = [reference(torch.tensor([i])).last_hidden_state[0] for i in ids]
    for how in KEYS if name in ("llama", "bert") else ("last", "mean"):
        normalize = how in ("last", "cls")
        sentence(folder, how, normalize)
        want = [pool(r, how) for r in rows]
        want = [w / w.norm() for w in want] if normalize else want
        flags = () if name == "bert" else ("--max_batch_tokens", "48", "--max_sequences", "5")
        process, client = start(folder, *flags)
        got = client.embeddings.create(model="m", input=texts)  # as base64, the client's default
        assert [d.index for d in got.data] == list(range(12)) and got.model == "m"
        assert got.usage.prompt_tokens == got.usage.total_tokens == sum(map(len, ids)), got.usage
        floats = client.embeddings.create(model="m", input=ids, encoding_format="float")
        for i in range(12):
            near(got.data[i].embedding, want[i], (name, how, i))
            assert torch.equal(torch.tensor(got.data[i].embedding), torch.tensor(floats.data[i].embedding)), (name, how, i)
        short = client.embeddings.create(model="m", input=ids[0], dimensions=7, encoding_format="float").data[0].embedding
        cut = want[0][:7] / want[0][:7].norm() if normalize else want[0][:7]
        near(short, cut, "dimensions")
        alone = [None] * 12
        stop = threading.Event()

        def chatter():
            while not stop.is_set() and name != "bert":
                client.completions.create(model="m", prompt=rng.choice(texts), max_tokens=9)

        def ask(i):
            alone[i] = client.embeddings.create(model="m", input=texts[i]).data[0].embedding

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(12)] + [threading.Thread(target=chatter) for _ in range(2)]
        for t in threads:
            t.start()
        for t in threads[:12]:
            t.join()
        stop.set()
        for t in threads[12:]:
            t.join()
        assert all(alone[i] == got.data[i].embedding for i in range(12)), (name, how)
        refusals(client)
        if name == "bert":
            lines = subprocess.run([os.path.join(BUILD, "ds_encode"), "--model", folder, "--task", "embedding", *texts], check=True,
                                   capture_output=True, text=True).stdout.splitlines()
            for i, line in enumerate(lines):
                near(json.loads(line)["embedding"], want[i], "ds_encode")
        process.terminate()
        assert process.wait(60) == 0
    print(f"{name}: vectors as transformers', the same bits in a crowd")


def main():
    for name, config in models():
        check(name, config)


main()
