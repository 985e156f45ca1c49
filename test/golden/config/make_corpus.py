# SPDX-License-Identifier: Apache-2.0
"""Makes corpus.jsonl: public example configurations, and what DeepSpeed itself makes of them.

Usage: make_corpus.py DEEPSPEED EXAMPLES TRANSFORMERS, three checkouts (the third may be a folder with
the files of `tests/deepspeed` and `tests/trainer/distributed/scripts` under their paths). Needs
hjson and deepspeed==0.19.8. Keys and values are re-typed as plain JSON, sorted; templates with
placeholders and fragments that are no objects are left out; a fragment without batch sizes gets
"train_batch_size": 8. A line holds:

  from       repository and path (#n: the n-th block of a page)
  config     keys and values
  deepspeed  "ok", or the kind of error of DeepSpeedConfig(config) at world size 1; "auto" where the
             file has values for the Trainer to fill
  values     for "ok": numbers as DeepSpeed resolves them
  expect     what our reader must refuse, "path: first words" each, judged by hand: features that are
             not built, keys that DeepSpeed never knew, values that it refuses too. It is kept from
             the corpus.jsonl that is there; a new entry gets [] and the test then says what it finds.
"""
import json
import pathlib
import re
import sys

import hjson

from deepspeed.runtime.config import DeepSpeedConfig

TOP = set("""train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps
zero_optimization fp16 bf16 bfloat16 optimizer scheduler elasticity compression_training autotuning
sparse_attention data_efficiency curriculum_learning progressive_layer_drop flops_profiler
tensorboard wandb csv_monitor comet comms_logger activation_checkpointing aio checkpoint data_types
tensor_parallel expert_parallel amp torch_autocast eigenvalue datastates_ckpt compile pipeline
communication_data_type gradient_clipping steps_per_print hybrid_engine nebula""".split())
PLACEHOLDER = re.compile(r"\$|,$|^[A-Z][A-Za-z0-9]*_[A-Z0-9_a-z]*$|^TODO|\.\.\.")
BATCH = ["train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"]


def blocks(root):
    for path in sorted(pathlib.Path(root).rglob("*")):
        name = str(path.relative_to(root))
        if not path.is_file() or "/." in "/" + name:
            continue
        if path.suffix in (".json", ".hjson"):
            yield name, path.read_text(errors="replace")
        elif path.suffix == ".md":
            text = path.read_text(errors="replace")
            for i, m in enumerate(re.finditer(r"^```(?:json|yml|yaml)\s*\n(.*?)^```", text,
                                              re.S | re.M)):
                yield "%s#%d" % (name, i), m.group(1)


def texts(value):
    if isinstance(value, dict):
        for k, v in value.items():
            yield k
            yield from texts(v)
    elif isinstance(value, list):
        for v in value:
            yield from texts(v)
    elif isinstance(value, str):
        yield value


def has_auto(value):
    return "auto" in texts(value)


def verdict(config):
    try:
        c = DeepSpeedConfig(json.loads(json.dumps(config)))
    except BaseException as error:  # assertions, type errors, SystemExit of its readers
        return type(error).__name__, None
    zero = c.zero_config
    return "ok", {
        "train_batch_size": c.train_batch_size,
        "train_micro_batch_size_per_gpu": c.train_micro_batch_size_per_gpu,
        "gradient_accumulation_steps": c.gradient_accumulation_steps,
        "gradient_clipping": c.gradient_clipping,
        "prescale_gradients": c.prescale_gradients,
        "gradient_predivide_factor": c.gradient_predivide_factor,
        "wall_clock_breakdown": c.wall_clock_breakdown and not c.flops_profiler_config.enabled,
        "dump_state": c.dump_state,
        "fp16.enabled": c.float16_config.enabled,
        "fp16.initial_scale_power": c.float16_config.initial_scale_power,
        "fp16.loss_scale_window": c.float16_config.loss_scale_window,
        "fp16.hysteresis": c.float16_config.hysteresis,
        "fp16.min_loss_scale": c.float16_config.min_loss_scale,
        "bf16.enabled": c.bfloat16_config.enabled,
        "zero_optimization.stage": int(zero.stage),
        "zero_optimization.overlap_comm": zero.overlap_comm,
        "zero_optimization.contiguous_gradients": zero.contiguous_gradients,
        "zero_optimization.reduce_scatter": zero.reduce_scatter,
        "zero_optimization.reduce_bucket_size": zero.reduce_bucket_size,
        "zero_optimization.allgather_bucket_size": zero.allgather_bucket_size,
        "zero_optimization.sub_group_size": zero.sub_group_size,
        "zero_optimization.prefetch_bucket_size": zero.prefetch_bucket_size,
        "zero_optimization.param_persistence_threshold": zero.param_persistence_threshold,
        "zero_optimization.max_live_parameters": zero.max_live_parameters,
        "zero_optimization.gather_16bit_weights_on_model_save":
            zero.gather_16bit_weights_on_model_save,
        "tensorboard.enabled": c.monitor_config.tensorboard.enabled,
        "csv_monitor.enabled": c.monitor_config.csv_monitor.enabled,
    }


def judged():
    path = pathlib.Path("corpus.jsonl")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {entry["from"]: entry.get("expect", []) for entry in map(json.loads, lines)}


def main():
    seen = set()
    expect = judged()
    with open("corpus.jsonl", "w", encoding="utf-8") as out:
        for repository, root in zip(("DeepSpeed", "DeepSpeedExamples", "transformers"),
                                    sys.argv[1:]):
            for name, text in blocks(root):
                try:
                    config = hjson.loads(text)
                except Exception:
                    continue
                if not isinstance(config, dict) or not TOP & set(config):
                    continue
                if any(PLACEHOLDER.search(t) for t in texts(config)):
                    continue
                if not any(key in config for key in BATCH):
                    config["train_batch_size"] = 8
                key = json.dumps(config, sort_keys=True)
                if key in seen:
                    continue
                seen.add(key)
                deepspeed, values = ("auto", None) if has_auto(config) else verdict(config)
                entry = {"from": "%s: %s" % (repository, name), "config": config,
                         "deepspeed": deepspeed}
                entry["expect"] = expect.get(entry["from"], [])
                if values is not None:
                    entry["values"] = values
                out.write(json.dumps(entry, sort_keys=True) + "\n")


main()
