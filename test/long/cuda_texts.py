#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every model folder of the goldens, every adapter and each way of ds_generate on the accelerator cuda, over the stand-ins: what cpu
writes in fp32 cuda writes, to the letter, and what cpu refuses cuda refuses with the same words. Usage: cuda_texts.py BUILD [WORD …]
WORD: only cases that have it in their flags. The goldens are DS_SOURCE_DIR's, or those beside this file."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

PROMPT, TOKENS = '!"#$!', "14"  # ids that the smallest vocabulary has
GREEDY = ["--temperature", "0"]
DRAWN = ["--temperature", "0.8", "--seed", "5"]
WAYS = [[*DRAWN, "--top_k", "9"], [*DRAWN, "--top_p", "0.7"], [*DRAWN, "--min_p", "0.05"], [*DRAWN, "--typical_p", "0.8"], [*DRAWN, "--mirostat", "1"],
        [*DRAWN, "--mirostat", "2", "--mirostat_tau", "3"], ["--num_beams", "3"], ["--num_beams", "2", "--length_penalty", "0.5", "--early_stopping", "true"],
        [*GREEDY, "--prompt", "a long one " * 6], [*GREEDY, "--chat", "--chat_template", "chatml"], [*GREEDY, "--threads", "2"],
        [*GREEDY, "--offload_param", "cpu"], [*GREEDY, "--offload_param", "nvme"], *([*GREEDY, "--quantize", t] for t in
        ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k"))]
HELD = [["--load_in_4bit"], ["--load_in_4bit", "--bnb_4bit_use_double_quant"], ["--load_in_8bit"], ["--load_in_fp8"]]


def cases(golden):
    """Flags of ds_generate."""
    def text(folder, *flags):
        return ["--model", str(folder), *flags]

    for folder in folders(golden):
        yield text(folder, *GREEDY)
    for base in ("parity/llama3", "parity/gpt2", "parity/qwen3_next", "parity/deepseek_v3", "parity/gemma3", "t5/t5", "t5/t5_untied"):
        for way in WAYS:
            yield text(golden / base, *way)
    for adapter in sorted(golden.glob("**/adapter_config.json")):
        base = base_of(golden, adapter)
        if base is not None:
            yield text(base, *GREEDY, "--adapter", str(adapter.parent))
            for held in HELD if adapter.parent.name == "end" else []:
                yield text(base, *GREEDY, "--adapter", str(adapter.parent), *held)
    for file in sorted((golden / "gguf").glob("*.gguf")):
        for flags in ((), ("--quantize", "file"), ("--quantize", "q8_0")):
            yield text(file, *GREEDY, *flags)
    for kind in ("int4", "bnb"):
        for folder in folders(golden / kind):
            yield text(folder, *GREEDY, "--quantize", "file")


def folders(golden):
    """Of models that write."""
    for path in sorted(golden.glob("**/config.json")):
        config = json.loads(path.read_text())
        if config.get("model_type") not in (None, "bert", "roberta", "modernbert") and path.with_name("model.safetensors").exists():
            yield path.parent


def base_of(golden, adapter):
    name = json.loads(adapter.read_text()).get("base_model_name_or_path") or ""
    for base in (golden / "adapter" / name, adapter.parent.parent, golden / name):
        if name and (base / "config.json").exists():
            return base.resolve()
    return None


def run(build, accelerator, flags):
    """Exit code, text, and the last line of what is said beside it."""
    env = {**os.environ, "DS_MODULE_PATH": f"{build}/standin", "LD_LIBRARY_PATH": f"{build}/standin"}
    own = [f"{build}/ds_generate", *flags, "--accelerator", accelerator, "--tokenizer", "bytes", "--dtype", "f32", "--max_new_tokens", TOKENS, "--no_echo"]
    own += [] if "--prompt" in flags else ["--prompt", PROMPT]
    got = subprocess.run(own, env=env, capture_output=True, timeout=600, check=False, stdin=subprocess.DEVNULL)
    last = [line for line in got.stderr.decode(errors="replace").splitlines() if not line.startswith("accelerator: ")][-1:]
    return got.returncode, got.stdout, "".join(last)


def main():
    build, words = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:]
    source = pathlib.Path(os.environ.get("DS_SOURCE_DIR", pathlib.Path(__file__).parents[2])).resolve()
    same = refused = wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for flags in cases(source / "test/golden"):
            if any(word not in " ".join(flags) for word in words):
                continue
            cpu, cuda = (run(build, name, flags) for name in ("cpu", "cuda"))
            if cpu[0] == cuda[0] == 0 and cpu[1] == cuda[1]:
                same += 1
            elif cpu[0] == cuda[0] == 1 and cpu[2] == cuda[2]:
                refused += 1
            else:
                wrong += 1
                print(f"WRONG {' '.join(flags)}\n  cpu {cpu}\n  cuda {cuda}", flush=True)
    print(f"{same} texts the same, {refused} refused by both, {wrong} wrong")
    return 1 if wrong or same == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
