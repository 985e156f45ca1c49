# SPDX-License-Identifier: Apache-2.0
"""Random meshes against one rank: random_meshes.py BUILD SOURCE CASES SEED [ONE].

Each case draws a model, data, a mesh of data, tensor, sequence, expert parallel ranks and stages of a pipeline (1 to 8 ranks), a ZeRO
stage and options, and runs
    one    one rank, everything that does not change numbers left at its default, the ranks' samples as accumulation steps
    flat   the mesh without its stages and, where that rounds alike, with every expert on each rank, likewise; only where there are such
    plain  the mesh, likewise
    case   the mesh with the options that were drawn
With ONE only the case of that number runs; -1, -2 … are fixed ones, which run before the others. What must hold:
    case and plain   the same bits of every loss and of every tensor of the checkpoint (LAW 4)
    plain and flat   the same
    one and plain    near: see limits(); but with collectives that carry few bits
A case that is refused must be so by a message of the program, with exit code 1 or 2, before anything is trained; reasons are counted, and
more than 5 % of the cases are a failure. Needs no package.
"""
import array
import copy
import hashlib
import itertools
import json
import math
import os
import pathlib
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

STEPS = 3
JOB = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
OURS = re.compile("plan invariant|internal|ambiguous|no collectives|may not write")  # no user can mend it: not a refusal
EPS = 1e-3  # of optimizers that divide by the root of a second moment: so large that noise of a gradient stays noise of an update
RATE = 1e-3
WIDE = 960  # of feed-forward parts whose activations are large enough to leave memory (64 KiB, from 18 positions on)


def limits(case):
    """(loss of the first step, of the others, moments, weights): relative to the loss, to the largest element, to steps times the rate.

    Ranks along dp have the samples of accumulation steps; so what differs is the order of sums: of products whose inputs are cut (tp), of a
    token's log-sum-exp by parts of the vocabulary, of a gradient over the rows of a sequence's parts or of two halves of a batch (domino). A sum of n terms in blocks, the blocks
    in a tree over N ranks, differs from that of one rank by at most (log2(n) + log2 N) u of the sum of absolute terms, with u = 2^-24 in fp32.
    A layer passes on what it gets with a factor near 1 (norms stand before its products), so L layers make some 2 L such errors,
    added; with L at most 3 (more, of pipelines with chunks: in proportion), n at most 2^8, N at most 8: 6 * 11 u = 66 u at most, and a quarter of it as seen in a loss, which is a mean
    over tokens: 16 u, or 1e-6. Gradients pass through twice as many, and are sums of terms of either sign, of which the largest
    element of a tensor is taken for the sum of absolute ones, at most 2^8 of them: 2^8 * 132 u = 2e-3 as the worst; 2^-12 here.
    An update divides by at least EPS: a weight moves by what its gradient does over EPS, so relative to the rate 2^-12 of a gradient
    of at most 1 over EPS, were it at the largest: 2^-2; here 2^-4. Terms that are lost or added twice make errors of the size 1.
    In 16 bits a partial sum is rounded before it is added up: u is 2^-9 (bf16), 2^-12 (fp16), errors of single elements do not add up in a
    mean, and the same counting gives 2 L roundings of either sign of a value, whose sum over tokens is small: loss 2^-7, or 2^-10.
    """
    u = {"fp32": 1.0, "bf16": 2.0**15, "fp16": 2.0**12}[case.precision]
    deeper = max(1.0, case.layers() / 3)
    if case.precision == "fp32":
        return 2e-6 * deeper, 2e-5 * deeper, 2.0**-12 * deeper, 2.0**-4 * deeper
    loss = 2.0**-24 * u * 4 * deeper
    return loss, 4 * loss, None, None


def draw(rng, *values):
    return rng.choice(values)


def gpt2(rng):
    heads = draw(rng, 2, 3, 4, 6)
    drop = draw(rng, 0.0, 0.0, 0.1)
    return {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": heads * draw(rng, 4, 8, 10), "n_layer": rng.randint(1, 3),
            "n_head": heads, "n_positions": 64, "attn_pdrop": draw(rng, 0.0, drop), "embd_pdrop": drop, "resid_pdrop": drop}


def decoder(rng, kind, name):
    heads = draw(rng, 2, 3, 4, 6, 8)
    kv = draw(rng, *[k for k in range(1, heads + 1) if heads % k == 0])
    size = draw(rng, 4, 8, 10)
    return {"model_type": kind, "architectures": [name], "hidden_size": heads * size, "intermediate_size": draw(rng, 24, 30, 36, 40, 48, 57),
            "num_hidden_layers": rng.randint(1, 3), "num_attention_heads": heads, "num_key_value_heads": kv, "max_position_embeddings": 64,
            "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": rng.random() < 0.4, "rope_theta": 10000.0,
            "attention_dropout": draw(rng, 0.0, 0.0, 0.0, 0.1)}


def llama(rng):
    return {**decoder(rng, "llama", "LlamaForCausalLM"), "attention_bias": rng.random() < 0.2, "mlp_bias": rng.random() < 0.2}


def qwen3(rng):
    config = decoder(rng, "qwen3", "Qwen3ForCausalLM")
    return {**config, "head_dim": draw(rng, 4, 8, 12)}


def qwen2(rng):
    return decoder(rng, "qwen2", "Qwen2ForCausalLM")


def phi3(rng):
    return {**decoder(rng, "phi3", "Phi3ForCausalLM"), "resid_pdrop": draw(rng, 0.0, 0.1), "pad_token_id": 0}


def olmo2(rng):
    return decoder(rng, "olmo2", "Olmo2ForCausalLM")


def neox(rng):
    heads = draw(rng, 2, 3, 4, 6)
    return {"model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"], "hidden_size": heads * 8, "intermediate_size": draw(rng, 36, 48),
            "num_hidden_layers": rng.randint(1, 2), "num_attention_heads": heads, "max_position_embeddings": 64, "rotary_pct": 0.5,
            "layer_norm_eps": 1e-5, "hidden_act": "gelu", "use_parallel_residual": rng.random() < 0.5, "tie_word_embeddings": False}


def mixtral(rng):
    experts = rng.randint(2, 5)
    return {**decoder(rng, "mixtral", "MixtralForCausalLM"), "num_local_experts": experts, "num_experts_per_tok": rng.randint(1, min(3, experts)),
            "router_jitter_noise": draw(rng, 0.0, 0.0, 0.1), "output_router_logits": rng.random() < 0.5, "router_aux_loss_coef": 0.02, "sliding_window": None}


def qwen3_moe(rng):
    experts = rng.randint(2, 6)
    config = decoder(rng, "qwen3_moe", "Qwen3MoeForCausalLM")
    return {**config, "head_dim": draw(rng, 4, 8, 12), "num_experts": experts, "num_experts_per_tok": rng.randint(1, min(3, experts)),
            "moe_intermediate_size": draw(rng, 8, 12, 20), "decoder_sparse_step": min(rng.randint(1, 2), config["num_hidden_layers"]), "norm_topk_prob": rng.random() < 0.5,
            "output_router_logits": rng.random() < 0.5, "router_aux_loss_coef": 0.02, "mlp_only_layers": []}


def olmoe(rng):
    experts = rng.randint(2, 5)
    return {**decoder(rng, "olmoe", "OlmoeForCausalLM"), "num_experts": experts, "num_experts_per_tok": rng.randint(1, min(3, experts)),
            "norm_topk_prob": rng.random() < 0.5, "clip_qkv": draw(rng, None, 0.05, 0.5), "output_router_logits": rng.random() < 0.5}


MODELS = [gpt2] * 4 + [llama] * 5 + [qwen3] * 3 + [qwen2, phi3, olmo2, neox] + [mixtral] * 4 + [qwen3_moe] * 2 + [olmoe]


class Case:
    def __init__(self, rng, n_ranks=8):
        self.rng = rng
        self.model = draw(rng, *MODELS)(rng)
        axis = range(1, 9)
        meshes = [mesh for mesh in itertools.product(axis, axis, axis, axis) if 1 < math.prod(mesh) <= n_ranks]
        experts = self.model.get("num_local_experts", self.model.get("num_experts", 0))
        meshes = [mesh for mesh in meshes if self.divides(mesh[1]) and mesh[3] <= self.layers() or rng.random() < 0.01]
        meshes = [mesh for mesh in meshes if mesh[3] <= self.layers()]
        self.dp, self.tp, self.sp, self.pp = rng.choices(meshes, [sum(n > 1 for n in mesh) / math.prod(mesh) for mesh in meshes])[0]
        self.ranks = self.dp * self.tp * self.sp * self.pp
        shared = [n for n in axis if n > 1 and self.dp % n == 0 and experts > 0 and experts % n == 0]
        self.ep = draw(rng, 1, *shared, *shared)  # of data-parallel ranks; experts that sp does not divide each of its ranks has
        self.folded = self.tp > 1 and experts > 0 and experts % (self.ep * self.tp) == 0 and rng.random() < 0.5
        self.model["vocab_size"] = draw(rng, 256, 257, 260, 264, 269, 300)
        self.order, self.chunks = "1f1b", 1
        if self.pp > 1 and rng.random() < 0.6:
            self.draw_order(rng)
        parts = self.sp * (self.tp if self.folded else 1)
        self.length = parts * rng.randint(max(1, 12 // parts), 36 // parts)
        self.ring = draw(rng, None, True, True, False) if self.sp > 1 else None  # ring attention, in halves or not
        self.batch, self.accumulation = rng.randint(1, 3), draw(rng, 1, 1, 2, 3)
        if self.order == "interleaved":  # which takes rounds of as many micro-batches as stages
            self.accumulation = self.pp * rng.randint(1, 2)
        elif self.order.startswith("zb-"):
            self.accumulation = draw(rng, self.accumulation, 4, 5)
        self.precision = draw(rng, "fp32", "fp32", "fp32", "fp32", "bf16", "fp16")
        self.data = draw(rng, "text.txt", "text.txt", "pairs.jsonl", "texts.jsonl")
        self.optimizer = draw(rng, "AdamW", "AdamW", "AdamW", "Adam", "SGD", "Adagrad", "Lion", "Lamb", "Muon")
        self.clipping = draw(rng, 0.0, 1.0, 0.1)
        self.flags = {"--loss_average": draw(rng, "micro_batches", "micro_batches", "targets"), "--eval_fraction": draw(rng, "0", "0.1")}
        self.adapter(rng)
        self.quantized = {}
        if rng.random() < 0.15:
            self.quantize(rng)
        self.options(rng)
        self.piece = 0  # positions of a chunk of the sequence
        self.domino = self.tp > 1 and (rng.random() < 0.4 if self.batch > 1 else rng.random() < 0.01)
        own = random.Random(f"{self.length} {self.batch} {self.ranks}")  # what was drawn before stays as it was
        heads = self.model.get("num_attention_heads", self.model.get("n_head", 1))
        if (self.ring is not None or heads % (self.sp * self.tp) == 0) and not self.domino and self.length > parts and own.random() < 0.4:
            # the ranks, or the length, may leave a rest; n chunks in a ring are n (n + 1) / 2 rounds of messages a layer, of which few tell as much
            least = parts if self.ring is None else max(parts, self.length // 4)
            self.piece = own.choice(range(least, self.length))
        self.routing = self.route(own, experts) if experts > 0 and own.random() < 0.5 else {}
        if self.pp > 1 and own.random() < 0.3:
            kind = own.choice(["uniform", "parameters", "profile", "type:block", "type:decoder", "type:attn|attention", "type:mlp"])
            self.config.setdefault("pipeline", {"stages": self.pp})["partition"] = kind

    @staticmethod
    def route(own, experts):
        """Keys of expert_parallel that stand in place of what the model says of its routers."""
        keys = {}
        groups = own.choice([n for n in range(1, experts) if experts % n == 0 and (n == 1 or experts >= 2 * n)])
        limited = own.randint(1, groups)
        if own.random() < 0.3:
            keys.update(num_expert_groups=groups, num_limited_groups=limited)
        most = limited * (experts // groups) if keys else experts
        keys["top_k"] = own.randint(1, min(3, most))
        for key, values in (("route_norm", (True, False)), ("route_scale", (0.5, 2.0)), ("routed_scaling_factor", (1.5, 0.25)),
                            ("score_func", ("softmax", "sigmoid")), ("score_apply", ("pre", "post"))):
            if own.random() < 0.4:
                keys[key] = own.choice(values)
        return keys

    def divides(self, tp):
        """Whether so many ranks can share some layer, as far as that is easily said."""
        width = self.model.get("intermediate_size", 4 * self.model.get("n_embd", 0))
        heads = self.model.get("num_attention_heads", self.model.get("n_head"))
        return width % tp == 0 or heads % tp == 0

    def layers(self):
        return self.model.get("num_hidden_layers", self.model.get("n_layer"))

    def draw_order(self, rng):
        """A schedule of the pipeline: it must not change a bit. Chunks of layers need as many layers."""
        self.order = draw(rng, "gpipe", "zb-h1", "zb-h1", "zb-v", "zb-v", "zb-v", "interleaved", "interleaved", "interleaved")
        if self.order in ("interleaved", "zb-v"):
            self.chunks = draw(rng, *[n for n in (2, 2, 2, 3, 4) if n * self.pp <= (8 if n == 2 else 6) or n == 2]) if self.order == "interleaved" else 2
            self.model["n_layer" if "n_layer" in self.model else "num_hidden_layers"] = self.pp * self.chunks + rng.randint(0, 1)

    def rounds_otherwise(self):
        """Whether gradients of experts are rounded, or added, in another order where ranks share them (docs/internals/place.md)."""
        inner = self.sp * (self.tp if self.folded else 1)
        experts = self.model.get("num_local_experts", self.model.get("num_experts", 0))
        copies = self.sp > 1 and experts % (self.ep * inner) != 0  # of experts, on ranks along sp
        return (self.precision != "fp32" or self.quantized or self.ep & (self.ep - 1) != 0 or self.ep > 1 and (self.piece > 0 or self.domino) or
                self.ep > 1 and (copies or inner & (inner - 1) != 0))

    def flat(self):
        """The mesh without what must not change a bit: stages, and ep where it does not change how often a gradient is rounded."""
        flat = copy.copy(self)
        flat.pp, flat.ep, flat.ranks = 1, self.ep if self.rounds_otherwise() else 1, self.ranks // self.pp
        return flat

    def adapter(self, rng):
        self.lora = rng.random() < 0.2 and "num_local_experts" not in self.model and "num_experts" not in self.model
        if self.lora:
            self.flags["--lora"] = str(rng.randint(1, 4))
            self.flags["--lora_dropout"] = draw(rng, "0", "0", "0.1")
            if rng.random() < 0.3:
                self.flags["--lora_method"] = "rslora"

    def quantize(self, rng):
        """Collectives that carry few bits, with stage 3, change numbers by what travels: the threshold and groups are of the mesh then."""
        self.quantized["stage3_param_persistence_threshold"] = draw(rng, 0, 100)
        if self.dp % 2 == 0 and rng.random() < 0.3:
            self.quantized["zero_hpz_partition_size"] = 2 * self.sp
        self.quantized[draw(rng, "zero_quantized_weights", "zero_quantized_gradients")] = True
        if rng.random() < 0.4:
            self.quantized.update(zero_quantized_weights=True, zero_quantized_gradients=True)
        if "zero_quantized_gradients" in self.quantized and self.tp * self.sp * self.pp == 1 and rng.random() < 0.5:
            self.quantized["zeropp_loco_param"] = {"err_beta": 0.8, "reset_T": 2}

    def options(self, rng):
        """What must not change a bit."""
        stage = 3 if self.quantized else rng.randrange(4)
        zero = {"stage": stage, **self.quantized}
        if rng.random() < 0.4:
            zero["reduce_bucket_size"] = draw(rng, 64, 1000, 20000)
        if rng.random() < 0.3 and stage in (1, 2):
            zero["allgather_bucket_size"] = draw(rng, 64, 1000, 20000)
        if rng.random() < 0.4:
            zero["overlap_comm"] = rng.random() < 0.7
        if stage == 3:
            zero.setdefault("stage3_param_persistence_threshold", draw(rng, 0, 100, 1000))
            zero["stage3_prefetch_bucket_size"] = draw(rng, 0, 1000, 100000)
            zero["stage3_max_live_parameters"] = draw(rng, 1000, 1000000)
            group = draw(rng, *[k for k in range(1, self.dp * self.sp + 1) if self.dp % k == 0])
            if group * self.sp > 1 and not self.quantized and rng.random() < 0.3:
                zero[draw(rng, "mics_shard_size", "zero_hpz_partition_size")] = group * self.sp
        if rng.random() < 0.25 and stage > 0:
            zero["offload_optimizer"] = self.device(rng)
        if rng.random() < 0.25 and stage == 3 and "zero_hpz_partition_size" not in zero:
            zero["offload_param"] = self.device(rng)
        self.config = {"zero_optimization": zero}
        if rng.random() < 0.3:
            self.config["activation_checkpointing"] = {"recompute": draw(rng, "selective", "full")}
        elif rng.random() < 0.1:
            self.config["activation_checkpointing"] = {"nvme_path": "."}
            self.model["intermediate_size" if "intermediate_size" in self.model else "n_inner"] = WIDE
        if self.pp > 1 and self.order != "1f1b":
            self.config["pipeline"] = {"stages": self.pp, "schedule": self.order, **({"chunks": self.chunks} if self.chunks != 1 else {})}
        self.own_flags = {"--threads": draw(rng, "1", "1", "2")}
        self.transport = draw(rng, "shm", "shm", "shm", "ucx", "mpi")
        self.resumes = rng.random() < 0.25

    @staticmethod
    def device(rng):
        return {"device": "cpu"} if rng.random() < 0.5 else {"device": "nvme", "nvme_path": "."}

    def numbers(self, one):
        """Keys that change numbers, for one rank or the mesh."""
        params = {"lr": RATE}
        if self.optimizer in ("AdamW", "Adam", "Adagrad", "Lamb", "Muon"):
            params["eps"] = EPS
        if self.optimizer == "SGD":
            params.update(lr=10 * RATE, momentum=0.9)
        if self.optimizer in ("AdamW", "Lion"):
            params["weight_decay"] = 0.01
        config = {"train_micro_batch_size_per_gpu": self.batch, "deterministic": True, "gradient_clipping": self.clipping,
                  "gradient_accumulation_steps": self.accumulation * (self.dp if one else 1),
                  "optimizer": {"type": self.optimizer, "params": params}, "zero_allow_untested_optimizer": True}
        if self.precision == "bf16":
            config["bf16"] = {"enabled": True}
        if self.precision == "fp16":
            config["fp16"] = {"enabled": True, "loss_scale": 128.0}
        if self.routing:
            config["expert_parallel"] = {"enabled": True, "autoep_size": 1, **self.routing}
        if not one:
            if self.quantized:
                config["zero_optimization"] = {"stage": 3, **self.quantized}
            config["tensor_parallel"] = {"autotp_size": self.tp, **({"domino": True} if self.domino else {})}
            config["sequence_parallel_size"] = self.sp
            if self.ring is not None:
                config["sequence_parallel"] = {"attention": "ring", "load_balance": self.ring}
            if self.piece > 0:
                config.setdefault("sequence_parallel", {})["chunk_size"] = self.piece
            if self.pp > 1:
                config["pipeline"] = {"stages": self.pp}
            if self.ep > 1 or self.folded:
                config["expert_parallel"] = {**self.routing, "enabled": True, "autoep_size": self.ep * (self.tp if self.folded else 1),
                                             "expert_tensor_parallel_size": 1 if self.folded else self.tp}
        return config

    def text(self):
        model = {key: value for key, value in self.model.items() if key not in ("architectures", "rms_norm_eps", "hidden_act", "rope_theta",
                                                                             "max_position_embeddings", "layer_norm_eps")}
        return (f"dp {self.dp} tp {self.tp} sp {self.sp} pp {self.pp} ep {self.ep}{' folded over tp' if self.folded else ''}, {self.precision}, {self.batch} x {self.length} x {self.accumulation} of {self.data}, "
                f"{'' if self.ring is None else 'ring in halves, ' if self.ring else 'ring, '}{'domino, ' if self.domino else ''}{f'chunks of {self.piece}, ' if self.piece else ''}{self.optimizer}, clipping {self.clipping}, {self.flags}, {self.config}, {self.routing}, {self.own_flags}, {self.transport}, "
                f"{'resumed, ' if self.resumes else ''}model {json.dumps(model)}")


LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 40, "intermediate_size": 40, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu",
         "vocab_size": 300, "tie_word_embeddings": False}
GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 40, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 257,
        "attn_pdrop": 0.1, "embd_pdrop": 0.0, "resid_pdrop": 0.1}
MOE = {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 24, "intermediate_size": 30, "num_hidden_layers": 2,
       "num_attention_heads": 3, "num_key_value_heads": 3, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu", "head_dim": 8,
       "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "decoder_sparse_step": 2, "norm_topk_prob": True,
       "mlp_only_layers": [], "tie_word_embeddings": True, "vocab_size": 269}
OLMOE = {"model_type": "olmoe", "architectures": ["OlmoeForCausalLM"], "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu",
         "num_experts": 4, "num_experts_per_tok": 2, "clip_qkv": 0.05, "vocab_size": 257, "tie_word_embeddings": False}
ROUTED = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
          "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu",
          "num_local_experts": 4, "num_experts_per_tok": 2, "tie_word_embeddings": False, "output_router_logits": True,
          "router_aux_loss_coef": 0.02, "sliding_window": None, "vocab_size": 256}
NEOX = {"model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"], "hidden_size": 48, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 6, "max_position_embeddings": 64, "rotary_pct": 0.5, "layer_norm_eps": 1e-5, "hidden_act": "gelu",
        "use_parallel_residual": True, "tie_word_embeddings": False, "vocab_size": 264}
OLMO2 = {**LLAMA, "model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"], "hidden_size": 8, "intermediate_size": 48, "num_hidden_layers": 1,
         "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 264}
# What random cases found, and what was built beside them: (mesh as dp, tp, sp, pp; batch, length, accumulation, model, flags).
FIXED = [
    ((1, 1, 2, 1), 3, 28, 1, {**GPT2, "n_embd": 16}, {}),  # a batch that the ranks do not divide was cut by them
    ((2, 2, 2, 1), 1, 12, 1, LLAMA, {"--lora": "3"}),  # a sum along two axes was to be made along one
    ((2, 1, 2, 1), 1, 12, 1, LLAMA, {"--lora": "4", "--lora_dropout": "0.1"}),  # a gradient that an exchange cut by features
    ((1, 2, 2, 1), 2, 12, 1, GPT2, {}),  # packed heads were cut in blocks by the wrong axis
    ((1, 3, 1, 1), 2, 20, 1, {**LLAMA, "num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 48, "intermediate_size": 48,
                              "vocab_size": 257}, {}),
    ((1, 2, 1, 1), 1, 14, 2, {**GPT2, "attn_pdrop": 0.0}, {"optimizer": "Muon"}),  # 257 rows that two ranks share were not gathered
    ((1, 1, 3, 2), 1, 18, 2, MOE, {}),  # the largest gradient of a stage with experts that others share was completed on all stages
    ((1, 1, 2, 3), 1, 24, 2, {**LLAMA, "num_hidden_layers": 3, "num_attention_heads": 3, "num_key_value_heads": 3, "hidden_size": 24},
     {}),  # a table of all positions was made by the second stage, which the first one read in its backward phase
    ((1, 1, 3, 1), 2, 33, 1, {**GPT2, "resid_pdrop": 0.1, "ring": True}, {}),  # a part of 11 positions in halves, everything dropped
    ((1, 2, 2, 2), 2, 18, 2, {**LLAMA, "num_key_value_heads": 2, "ring": True}, {}),  # a ring beside tp and stages
    ((1, 1, 4, 1), 1, 28, 1, {**LLAMA, "hidden_size": 60, "num_attention_heads": 5, "num_key_value_heads": 1, "ring": False}, {}),
    ((1, 2, 1, 1), 2, 12, 1, LLAMA, {"--lora": "4", "--lora_dropout": "0.1"}),  # columns of a row-parallel layer draw by their numbers
    ((1, 2, 1, 2), 2, 12, 3, LLAMA, {"--lora": "1"}),  # what peers read of the backward phase lay where another micro-batch was
    ((1, 2, 1, 1), 2, 12, 1, OLMOE, {}),  # clipped queries were cut by heads, which the norm before them could not take back
    ((1, 2, 1, 2), 2, 12, 4, {**LLAMA, "num_hidden_layers": 5}, {"schedule": "interleaved"}),
    ((2, 1, 2, 3), 1, 24, 3, {**MOE, "num_hidden_layers": 6}, {"schedule": "interleaved"}),
    ((1, 2, 1, 3), 1, 12, 5, {**LLAMA, "num_hidden_layers": 3, "tie_word_embeddings": True}, {"schedule": "zb-h1", "--lora": "2"}),
    ((2, 1, 1, 2), 1, 12, 5, {**MOE, "num_hidden_layers": 5}, {"schedule": "zb-v"}),
    ((1, 2, 1, 3), 1, 12, 6, {**LLAMA, "num_hidden_layers": 6, "tie_word_embeddings": True}, {"schedule": "zb-v"}),
    ((1, 2, 2, 2), 3, 18, 2, {**LLAMA, "num_key_value_heads": 2, "ring": True, "domino": True}, {}),  # an odd batch in halves beside a ring and stages
    ((2, 2, 1, 1), 2, 20, 1, {**GPT2, "embd_pdrop": 0.1, "domino": True}, {}),  # everything dropped, by halves
    # the head's gradient that was put off was seeded with the targets of a later micro-batch
    ((2, 1, 1, 2), 1, 20, 5, LLAMA, {"schedule": "zb-h1", "--loss_average": "targets", "data": "texts.jsonl"}),
    ((1, 1, 1, 2), 2, 20, 5, {**LLAMA, "num_hidden_layers": 4}, {"schedule": "zb-v", "--loss_average": "targets", "data": "texts.jsonl"}),
    # a half read documents of whole rows, of which sp had cut the input; the sum that half 2's gradient goes behind was to be one along tp too
    ((1, 2, 3, 1), 2, 18, 2, {**NEOX, "domino": True}, {"--loss_average": "targets", "data": "pairs.jsonl"}),
    ((1, 2, 3, 1), 2, 15, 3, {**OLMO2, "ring": True, "domino": True}, {"--lora": "3", "--lora_dropout": "0.1"}),
    # the routers' losses keep what a layer begins with, which was made where peers had read the layer before
    ((1, 2, 2, 2), 2, 16, 3, ROUTED, {"recompute": "full"}),
    ((1, 2, 1, 2), 1, 16, 4, ROUTED, {"recompute": "full", "schedule": "interleaved"}),
    # magnitudes of gradients that leave memory in a chunk's phase were to wait for the norm where other micro-batches come
    ((1, 1, 1, 2), 1, 16, 4, {**LLAMA, "num_hidden_layers": 4}, {"schedule": "interleaved", "offload": "nvme"}),
    ((1, 1, 1, 2), 1, 16, 4, {**LLAMA, "num_hidden_layers": 4}, {"schedule": "zb-v", "offload": "nvme"}),
    ((1, 2, 2, 1), 2, 30, 2, {**LLAMA, "piece": 10}, {}),  # chunks of a sequence beside tp and sp
    ((2, 1, 1, 1), 1, 35, 1, {**GPT2, "resid_pdrop": 0.1, "piece": 7}, {}),  # on data-parallel ranks alone, everything dropped
    ((1, 1, 3, 1), 2, 33, 1, {**LLAMA, "ring": True, "piece": 7}, {}),  # in a ring of heads that the ranks do not divide, a rest
    ((2, 1, 2, 1), 1, 26, 1, {**ROUTED, "num_hidden_layers": 2, "ep": 2, "piece": 8}, {"recompute": "full"}),  # beside experts, a rest
    ((1, 2, 1, 2), 1, 30, 3, {**LLAMA, "piece": 12}, {}),  # and beside stages
    # more messages in a step than communicators hold calls
    ((1, 1, 1, 2), 1, 30, 4, {**LLAMA, "num_hidden_layers": 4, "piece": 1}, {"schedule": "interleaved"}),
    # activations on disk, of every micro-batch in flight
    ((1, 2, 1, 2), 2, 30, 4, {**LLAMA, "num_hidden_layers": 4, "intermediate_size": WIDE}, {"away": True}),
    ((2, 1, 1, 2), 1, 32, 4, {**ROUTED, "intermediate_size": WIDE}, {"away": True, "schedule": "zb-v"}),
    # LoCo of experts that ranks share: what their gradients lose is of fewer ranks
    ((6, 1, 1, 1), 2, 12, 2, {**ROUTED, "num_hidden_layers": 1, "ep": 2},
     {"quantized": {"zero_quantized_gradients": True, "zeropp_loco_param": {"err_beta": 0.8, "reset_T": 2}, "zero_hpz_partition_size": 2}}),
    ((4, 1, 1, 1), 1, 14, 2, {**ROUTED, "num_hidden_layers": 1, "ep": 2},
     {"quantized": {"zero_quantized_gradients": True, "zeropp_loco_param": {"err_beta": 0.5, "reset_T": 8}}}),
    # two reductions of one bucket that had started apart were waited for together
    ((4, 1, 2, 1), 3, 24, 1, {**ROUTED, "num_hidden_layers": 1, "ep": 2, "ring": True}, {"precision": "bf16", "quantized": {"mics_shard_size": 4}}),
    # a sum along tp, of three, whose terms along sp were to stay apart for the reduction in few bits
    ((1, 3, 2, 1), 2, 20, 1, {**LLAMA, "num_attention_heads": 3, "num_key_value_heads": 3, "hidden_size": 24, "intermediate_size": 36},
     {"--lora": "3", "quantized": {"zero_quantized_gradients": True}}),
    # what a chunk leaves for the weights' half of the next on its rank (no norm before q, k, v) was overwritten where that came late
    ((1, 1, 1, 2), 1, 16, 4, {**OLMO2, "num_hidden_layers": 4}, {"schedule": "zb-v"}),
    # routers as expert_parallel says, on stages and in groups
    ((2, 1, 1, 2), 2, 16, 2, {**ROUTED, "ep": 2}, {"routing": {"top_k": 1, "score_func": "sigmoid", "score_apply": "post", "num_expert_groups": 2,
                                                              "num_limited_groups": 1, "routed_scaling_factor": 1.5}}),
]


def fixed_case(i):
    """Case -1 - i: as drawn, but for what FIXED says; ZeRO 3."""
    case = Case(random.Random(i))
    (case.dp, case.tp, case.sp, case.pp), case.batch, case.length, case.accumulation, model, flags = FIXED[i]
    case.model = dict(model)
    case.quantized, case.ring, case.domino = {}, case.model.pop("ring", None), case.model.pop("domino", False)
    case.piece = case.model.pop("piece", 0)
    case.folded = False
    case.ep, case.ranks, case.lora = case.model.pop("ep", 1), case.dp * case.tp * case.sp * case.pp, "--lora" in flags
    case.precision, case.data, case.transport, case.resumes = "fp32", "text.txt", "shm", False
    case.flags = {"--loss_average": "micro_batches", **flags}
    case.quantized = case.flags.pop("quantized", {})
    case.precision = case.flags.pop("precision", case.precision)
    case.routing = case.flags.pop("routing", {})
    case.optimizer = case.flags.pop("optimizer", "AdamW")
    case.order = case.flags.pop("schedule", "1f1b")
    case.data = case.flags.pop("data", case.data)
    away = case.flags.pop("away", False)
    recompute = None if away else case.flags.pop("recompute", "selective" if case.order == "1f1b" and case.pp > 1 else None)
    case.config = {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0, **case.quantized}}
    if "offload" in case.flags:
        case.config["zero_optimization"]["offload_optimizer"] = {"device": case.flags.pop("offload"), "nvme_path": "."}
    if case.order != "1f1b":
        case.config["pipeline"] = {"stages": case.pp, "schedule": case.order}
    if recompute:
        case.config["activation_checkpointing"] = {"recompute": recompute}
    if away:
        case.config["activation_checkpointing"] = {"nvme_path": "."}
    return case


class Runs:
    def __init__(self, build, folder):
        self.build, self.folder = build, folder

    def write_model(self, case):
        (self.folder / "model.json").write_text(json.dumps(case.model))

    def command(self, case, name, config, flags):
        (self.folder / f"{name}.json").write_text(json.dumps(config))
        words = {"--model_config": "model.json", "--tokenizer": "bytes", "--data": case.data, "--seq_length": str(case.length), "--seed": "7",
                 "--steps": str(STEPS), "--lr_scheduler_type": "none", "--deepspeed_config": f"{name}.json", "--output": name,
                 "--metrics": f"{name}.jsonl", "--report": "none", "--data_cache": "none", **case.flags, **flags}
        return [f"{self.build}/ds_train"] + [word for pair in words.items() for word in pair if word is not None]

    def launch(self, words, ranks, transport):
        """Exit code and output of a job."""
        env = {k: v for k, v in os.environ.items() if k not in JOB and not k.startswith("DS_")}
        env["DEEPSPEED_TIMEOUT"] = "1"
        if ranks == 1:
            given, starts = words, [env]
        elif transport == "shm":
            given, starts = [f"{self.build}/deepspeed", "--num_gpus", str(ranks), *words], [env]
        else:  # ranks that are told that each has a host of its own
            with socket.socket() as s:
                s.bind(("127.0.0.1", 0))
                port = str(s.getsockname()[1])
            env.update(WORLD_SIZE=str(ranks), LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
            given, starts = words, [{**env, "RANK": str(rank)} for rank in range(ranks)]
            if transport == "mpi":
                given = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), "sh", "-c",
                         'RANK=$OMPI_COMM_WORLD_RANK; export RANK; exec "$@"', "sh", *words]
                starts = [env]
        logs = [tempfile.TemporaryFile("w+", dir=self.folder) for _ in starts]
        jobs = [subprocess.Popen(given, cwd=self.folder, env=e, stdout=log, stderr=subprocess.STDOUT) for e, log in zip(starts, logs)]
        codes = []
        for job in jobs:
            try:
                codes.append(job.wait(timeout=180))
            except subprocess.TimeoutExpired:
                job.kill()
                codes.append("no end")
        texts = []
        for log in logs:
            log.seek(0)
            texts.append(log.read())
        worst = next((code for code in codes if code != 0), 0)
        return worst, "\n".join(texts)

    def run(self, case, name, config, ranks, transport="shm", flags=None, resumes=False):
        """A result: losses and tensors, or the message of a refusal."""
        shutil.rmtree(self.folder / name, ignore_errors=True)
        (self.folder / f"{name}.jsonl").unlink(missing_ok=True)
        flags = {"--threads": "1", **(flags or {})}
        if resumes:
            code, text = self.launch(self.command(case, name, config, {**flags, "--steps": "1"}), ranks, transport)
            if code == 0:
                code, text = self.launch(self.command(case, name, config, {**flags, "--resume": None}), ranks, transport)
        else:
            code, text = self.launch(self.command(case, name, config, flags), ranks, transport)
        return Result(self, name, code, text)


class Result:
    def __init__(self, runs, name, code, text):
        self.code, self.log, self.refused, self.losses, self.evals, self.data, self.header = code, text, None, [], [], b"", {}
        if code != 0:
            lines = [line for line in text.splitlines() if re.search(r"(ds_train|json): |error", line)]
            metrics = runs.folder / f"{name}.jsonl"
            begun = metrics.exists() and '"loss"' in metrics.read_text()
            if code in (1, 2) and lines and not begun and "killed by" not in text:
                self.refused = re.sub(r"^.*?(ds_train|json[:\d]*): ", "", lines[0])
            return
        lines = [json.loads(line) for line in (runs.folder / f"{name}.jsonl").read_text().splitlines()]
        self.losses = [line["loss"] for line in lines if "loss" in line]
        self.evals = [line["eval_loss"] for line in lines if "eval_loss" in line]
        shutil.rmtree(runs.folder / "whole", ignore_errors=True)
        subprocess.run([f"{runs.build}/ds_checkpoint", "consolidate", name, "whole"], cwd=runs.folder, check=True, capture_output=True)
        files = list((runs.folder / "whole").glob("global_step*/*.safetensors"))
        assert len(files) == 1, files
        content = files[0].read_bytes()
        begin = 8 + int.from_bytes(content[:8], "little")
        self.header, self.data = json.loads(content[8:begin]), content[begin:]
        self.header.pop("__metadata__", None)

    def tensor(self, name):
        entry = self.header[name]
        begin, end = entry["data_offsets"]
        return array.array("f", self.data[begin:end]) if entry["dtype"] == "F32" else None

    def hash(self):
        return hashlib.sha256(json.dumps(self.header, sort_keys=True).encode() + self.data).hexdigest()


def tensors_near(case, one, mesh, moments, weights):
    """Complaints about tensors that are too far apart."""
    bad = []
    if set(one.header) != set(mesh.header):
        return [f"other tensors: {sorted(set(one.header) ^ set(mesh.header))}"]
    worst = {}
    largest = {}
    for name in one.header:
        kind = name.split("/")[0]
        a, b = one.tensor(name), mesh.tensor(name)
        if a is None or b is None:
            continue
        if len(a) != len(b):
            return [f"{name}: {len(a)} and {len(b)} elements"]
        size = max((abs(x) for x in a), default=0.0)
        largest[kind] = max(largest.get(kind, 0.0), size)
        worst[name] = (max((abs(x - y) for x, y in zip(a, b)), default=0.0), size)
    for name, (distance, size) in worst.items():
        kind = name.split("/")[0]
        if kind in ("param", "master"):
            limit = weights * STEPS * (10 * RATE if case.optimizer == "SGD" else RATE)
        else:
            limit = moments * size + 2.0**-20 * largest[kind]
        if not distance <= limit and not (case.optimizer in ("Lion", "Muon") and kind in ("param", "master")):
            bad.append(f"{name}: {distance:.3g} apart, at most {limit:.3g}; its largest is {size:.3g}")
    return bad


def near(case, one, mesh):
    first, later, moments, weights = limits(case)
    bad = []
    if len(one.losses) != STEPS or len(mesh.losses) != STEPS:
        return [f"{len(one.losses)} and {len(mesh.losses)} losses"]
    for step, (a, b) in enumerate(zip(one.losses, mesh.losses)):
        limit = (later if step else first) * abs(a)
        if not abs(a - b) <= limit:
            bad.append(f"loss of step {step + 1}: {a} on one rank, {b}: {abs(a - b) / abs(a):.3g} of it, at most {limit / abs(a):.3g}")
    if len(one.evals) != len(mesh.evals) or any(abs(a - b) > later * abs(a) for a, b in zip(one.evals, mesh.evals)):
        bad.append(f"evaluated: {one.evals} on one rank, {mesh.evals}")
    if moments is not None and not bad:
        bad += tensors_near(case, one, mesh, moments, weights)[:6]
    return bad


def transports(build):
    have = ["shm"]
    if (build / "libdeepspeed_ucx.so").exists():
        have.append("ucx")
    if (build / "libdeepspeed_mpi_openmpi.so").exists() and shutil.which("mpirun"):
        have.append("mpi")
    return have


def check(runs, case, have):
    """(reason of a refusal or None, complaints)."""
    runs.write_model(case)
    transport = case.transport if case.transport in have else "shm"
    drawn = runs.run(case, "case", {**case.numbers(False), **case.config}, case.ranks, transport, case.own_flags, case.resumes)
    if drawn.refused and OURS.search(drawn.refused):
        return None, [f"a fault of the planner: {drawn.refused}"]
    if drawn.refused:
        return drawn.refused, []
    if drawn.code != 0:
        return None, [f"the case ended with {drawn.code}:\n{drawn.log[-2500:]}"]
    plain = runs.run(case, "plain", case.numbers(False), case.ranks)
    one = runs.run(case, "one", case.numbers(True), 1)
    flat = runs.run(case, "flat", case.flat().numbers(False), case.flat().ranks) if case.pp * case.ep > 1 else plain
    for name, result in (("plain", plain), ("one", one), ("flat", flat)):
        if result.code != 0:
            return None, [f"the case ran, {name} ended with {result.code}: {result.log[-2500:]}"]
    bad = []
    if drawn.losses != plain.losses[-len(drawn.losses):]:
        bad.append(f"losses by options: {drawn.losses}, plain {plain.losses}")
    if drawn.evals[-1:] != plain.evals[-1:]:  # a resumed run has one more, before it
        bad.append(f"evaluations by options: {drawn.evals}, plain {plain.evals}")
    if plain.losses != flat.losses or plain.evals != flat.evals:
        bad.append(f"losses by stages and experts: {plain.losses}, flat {flat.losses}; evaluated {plain.evals}, flat {flat.evals}")
    for what, got, want in (("options", drawn, plain), ("stages and experts", plain, flat)):
        names = [name for name in want.header if name not in got.header or
                 want.data[slice(*want.header[name]["data_offsets"])] != got.data[slice(*got.header[name]["data_offsets"])]]
        if got.hash() != want.hash():
            bad.append(f"bits by {what}: {len(names)} of {len(want.header)} tensors differ: {', '.join(names[:5])}")
    return None, bad + (near(case, one, plain) if not case.quantized else [])


def make_data(source, folder):
    text = (source / "data" / "tinyshakespeare.txt").read_text()[:30000]
    (folder / "text.txt").write_text(text)
    lines = [line for line in text.split("\n") if len(line) > 8]
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    (folder / "pairs.jsonl").write_text("".join(json.dumps({"prompt": line[:3 + i % 5], "completion": line[3 + i % 5:]}) + "\n"
                                                for i, line in enumerate(lines)))


def main():
    build, source, n, seed = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve(), int(sys.argv[3]), int(sys.argv[4])
    only = int(sys.argv[5]) if len(sys.argv) > 5 else None
    have = transports(build)
    reasons, failures, begin = {}, 0, time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_data(source, folder)
        runs = Runs(build, folder)
        for i in range(-len(FIXED), n) if only is None else [only]:
            case = fixed_case(-1 - i) if i < 0 else Case(random.Random(seed * 1000003 + i))
            refused, bad = check(runs, case, have)
            if refused and i < 0:
                bad = [f"refused: {refused}"]
            elif refused:
                reason = re.sub(r"\d+", "N", refused)[:160]
                reasons.setdefault(reason, []).append(i)
            if bad:
                failures += 1
                print(f"case {i} of seed {seed}: {case.text()}", *bad, sep="\n  ", flush=True)
            elif only is not None:
                print(f"case {i}: {case.text()}\n  {'refused: ' + refused if refused else 'holds'}")
    n_refused = sum(len(cases) for cases in reasons.values())
    for reason, cases in sorted(reasons.items(), key=lambda item: -len(item[1])):
        print(f"refused {len(cases):4}: {reason} (cases {', '.join(map(str, cases[:6]))})")
    print(f"{n + len(FIXED) if only is None else 1} meshes, {failures} do not hold, {n_refused} refused, transports {' '.join(have)}, "
          f"{time.monotonic() - begin:.0f} s")
    too_many = n_refused > max(2, n * 0.05) and only is None
    if too_many:
        print("more than 5 % are refused")
    sys.exit(1 if failures or too_many else 0)


if __name__ == "__main__":
    main()
