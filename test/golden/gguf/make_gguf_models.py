#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tiny models as GGUF files (NAME.gguf, F32) beside what they were made of (NAME.safetensors), and their tokenizers' ids.

That the files are right is not ours to say: transformers loads each one and must give the original tensors. Ids are those of
the `tokenizers` and `sentencepiece` packages that made the vocabularies. Needs torch, transformers, gguf, tokenizers, sentencepiece.
"""
import io
import json
import os

import gguf
import numpy as np
import sentencepiece
import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen2Config, Qwen3Config

HERE = os.path.dirname(os.path.abspath(__file__))
TEXT = open(os.path.join(HERE, "../../../data/tinyshakespeare.txt"), encoding="utf-8").read()
SHORT = [s for s in TEXT[:60000].split("\n") if s]
CASES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = CASES + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + REST
SAMPLES = ["First Citizen: we are 1234 strong.", "  two  spaces\n\nand\tmore ", "It's ROMEO'S", "Grüße, 漢字! 😀", "a", " ", "\n",
           "<s>not a token</s>", "x" * 40] + SHORT[100:110]


def permute(w, heads):  # llama.cpp's conversion of Llama's q and k
    shape = w.shape
    return w.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def byte_bpe(path, pre):
    tok = Tokenizer(models.BPE())
    split = [pre_tokenizers.Split(Regex(QWEN2), "isolated")] if pre == "qwen2" else []
    digits = [pre_tokenizers.Digits(individual_digits=True)] if pre == "smollm" else []
    tok.pre_tokenizer = pre_tokenizers.Sequence(split + digits + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not split)])
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(SHORT, trainers.BpeTrainer(vocab_size=320, special_tokens=["<|end|>"], show_progress=False,
                                                       initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    root = json.loads(tok.to_str())["model"]
    tokens = sorted(root["vocab"], key=root["vocab"].get)
    return {"kind": "gpt2", "pre": pre, "tokens": tokens, "types": [3] + [1] * (len(tokens) - 1),
            "merges": [" ".join(m) if isinstance(m, list) else m for m in root["merges"]],
            "ids": [[tok.encode(s, add_special_tokens=False).ids, s] for s in SAMPLES]}


def spm():
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(SHORT), model_writer=out, vocab_size=400, model_type="bpe",
                                             byte_fallback=True, character_coverage=1.0, normalization_rule_name="identity",
                                             remove_extra_whitespaces=False, minloglevel=2)
    sp = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())
    n = sp.get_piece_size()
    types = [2 if sp.is_unknown(i) else 3 if sp.is_control(i) else 6 if sp.is_byte(i) else 1 for i in range(n)]
    samples = [s for s in SAMPLES if "<s>" not in s]
    return {"kind": "llama", "pre": "default", "tokens": [sp.id_to_piece(i) for i in range(n)], "types": types,
            "scores": [sp.get_score(i) for i in range(n)], "ids": [[sp.encode(s), s] for s in samples]}


def add_tokenizer(w, t):
    w.add_tokenizer_model(t["kind"])
    w.add_tokenizer_pre(t["pre"])
    w.add_token_list(t["tokens"])
    w.add_token_types(t["types"])
    if "merges" in t:
        w.add_token_merges(t["merges"])
    else:
        w.add_token_scores(t["scores"])
    spm_kind = t["kind"] == "llama"
    w.add_bos_token_id(1 if spm_kind else 0)
    w.add_eos_token_id(2 if spm_kind else 0)
    w.add_add_bos_token(spm_kind)
    w.add_chat_template("{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}")


def add_decoder(w, arch, c):
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_block_count(c.num_hidden_layers)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_rope_freq_base(c.rope_parameters["rope_theta"])
    head = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    w.add_rope_dimension_count(head)
    if arch == "qwen3":
        w.add_key_length(head)
        w.add_value_length(head)
    w.add_vocab_size(c.vocab_size)


def names(arch, c):
    both = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "transformer.wte": "token_embd",
            "transformer.wpe": "position_embd", "transformer.ln_f": "output_norm"}
    layer = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
             "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
             "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
             "ln_1": "attn_norm", "ln_2": "ffn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "mlp.c_fc": "ffn_up",
             "mlp.c_proj": "ffn_down"}
    for i in range(c.num_hidden_layers):
        for k, v in layer.items():
            body = "transformer.h" if arch == "gpt2" else "model.layers"
            both[f"{body}.{i}.{k}"] = f"blk.{i}.{v}"
    return both


def write(name, arch, config, tokenizer):
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(config).float()
    for p in model.parameters():
        p.data = torch.randn_like(p) * 0.1
    state = {k: v for k, v in model.state_dict().items() if not (config.tie_word_embeddings and k == "lm_head.weight")}
    path = os.path.join(HERE, name + ".gguf")
    w = gguf.GGUFWriter(path, arch)
    if arch == "gpt2":
        w.add_context_length(config.n_positions)
        w.add_embedding_length(config.n_embd)
        w.add_block_count(config.n_layer)
        w.add_feed_forward_length(4 * config.n_embd)
        w.add_head_count(config.n_head)
        w.add_layer_norm_eps(config.layer_norm_epsilon)
    else:
        add_decoder(w, arch, config)
    add_tokenizer(w, tokenizer)
    table = names(arch, config)
    for k, v in state.items():
        module, kind = k.rsplit(".", 1)
        a = v.numpy()
        if arch == "llama" and module.endswith(("q_proj", "k_proj")):
            a = permute(a, config.num_attention_heads if module.endswith("q_proj") else config.num_key_value_heads)
        if arch == "gpt2" and kind == "weight" and ".c_" in module:
            a = a.T
        w.add_tensor(f"{table[module]}.{kind}", np.ascontiguousarray(a))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    back = AutoModelForCausalLM.from_pretrained(HERE, gguf_file=name + ".gguf", config=config, dtype=torch.float32).state_dict()
    for k, v in state.items():
        assert torch.equal(back[k], v), (name, k)
    save_file({k: v.contiguous() for k, v in state.items()}, os.path.join(HERE, name + ".safetensors"))
    with open(os.path.join(HERE, name + ".ids.json"), "w", encoding="utf-8") as f:
        json.dump(tokenizer["ids"], f, ensure_ascii=True)
        f.write("\n")


def main():
    small = dict(hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                 max_position_embeddings=64)
    s = spm()
    q = byte_bpe("qwen2", "qwen2")
    m = byte_bpe("smollm", "smollm")
    write("llama", "llama", LlamaConfig(vocab_size=len(s["tokens"]), head_dim=6, rms_norm_eps=1e-5, rope_theta=5e5, bos_token_id=1,
                                        eos_token_id=2, tie_word_embeddings=False, **small), s)
    write("qwen2", "qwen2", Qwen2Config(vocab_size=len(q["tokens"]), rms_norm_eps=1e-6, rope_theta=1e6, tie_word_embeddings=True, **small), q)
    write("qwen3", "qwen3", Qwen3Config(vocab_size=len(q["tokens"]), head_dim=8, rms_norm_eps=1e-6, rope_theta=1e6,
                                        tie_word_embeddings=False, **small), q)
    write("gpt2", "gpt2", GPT2Config(vocab_size=len(m["tokens"]), n_positions=32, n_embd=24, n_layer=2, n_head=3), m)


if __name__ == "__main__":
    main()
