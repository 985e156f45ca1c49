# SPDX-License-Identifier: Apache-2.0
"""Signals at random moments of every tool's long work; see test_signals.sh, which makes what it starts from.

A second after SIGINT, SIGTERM or SIGHUP the process has ended, by the signal, with 128 + its number or with 130 (interrupted), or has said why it goes on."""
import os, random, signal, subprocess, sys, time

BIN, ROOT = os.environ["bin"], os.environ["root"]
CASES, SEED = int(os.environ.get("DS_SIGNAL_CASES", "18")), int(os.environ.get("DS_SIGNAL_SEED", "1"))
MOST = float(os.environ.get("DS_SIGNAL_SECONDS", "2.5"))  # 1 s, and what a busy machine adds
SAYS = b"ends after this step"
MODEL = ["--model_config", ROOT + "/test/common/gpt2.json", "--tokenizer", "bytes"]
TRAIN = ["ds_train"] + MODEL + ["--seq_length", "64", "--data", "text.txt", "--deepspeed_config", "ds.json", "--steps", "100000"]
JOBS = {
    "train": TRAIN,
    "train and save": TRAIN + ["--output", "out", "--save_interval", "1", "--eval_interval", "1", "--eval_fraction", "0.2"],
    "two ranks": ["deepspeed", "--num_gpus", "2", BIN + "/ds_train"] + TRAIN[1:],
    "tokenize": ["ds_data", "tokenize", "big.txt", "--tokenizer", "bytes", "--output", "tokens"],
    "generate": ["ds_generate", "--model", "saved", "--tokenizer", "bytes", "--prompt", "To be", "--max_new_tokens", "120"],
    "plan": ["ds_plan", "--model_config", ROOT + "/test/common/gpt2.json", "--deepspeed_config", "ds.json", "--world_size", "8"],
    "profile": ["ds_bench", "--profile", "machine.json"],
    "collectives": ["deepspeed", "--num_gpus", "2", BIN + "/ds_bench"],
    "tune": ["deepspeed", "--num_gpus", "1", "--autotuning", "tune", BIN + "/ds_train"] + TRAIN[1:],
    "verify": ["ds_checkpoint", "verify", "saved", "--all"],
    "export": ["ds_checkpoint", "export", "saved", "exported"],
    "fp32": ["zero_to_fp32", "saved", "fp32"],
    "io": ["ds_io", "--folder", ".", "--io_size", "64M"],
    "disk": ["ds_nvme_tune", "--nvme_dir", "."],
    "configuration from a pipe": ["ds_config", "check", "pipe"],
    "training from a pipe": TRAIN[:-3] + ["pipe", "--steps", "2"],
    "hosts from a pipe": ["deepspeed", "--hostfile", "pipe", "true"],
    "prompt from a pipe": ["ds_generate", "--model", "saved", "--tokenizer", "bytes", "--prompt_file", "pipe"],
    "a rank that waits": ["env", "RANK=0", "WORLD_SIZE=2", "MASTER_PORT=29517", BIN + "/ds_bench"],
}


def heed_all():
    """A test in the background inherits SIGINT ignored, and its child would, too."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def one(name, rng, case):
    argv = JOBS[name]
    number = rng.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    moment = rng.choice([rng.uniform(0, 0.1), rng.uniform(0, 1.2)])
    log = open("log%d" % case, "wb")
    program = argv if argv[0] == "env" else [BIN + "/" + argv[0]] + argv[1:]
    p = subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                         preexec_fn=heed_all)
    time.sleep(moment)
    if p.poll() is not None:
        return "ended before", 0.0, p.returncode
    p.send_signal(number)
    begin = time.time()
    try:
        p.wait(MOST)
        return "", time.time() - begin, p.returncode if p.returncode not in (-number, 128 + number, 130) else None
    except subprocess.TimeoutExpired:
        said = SAYS in open(log.name, "rb").read()
        os.killpg(p.pid, signal.SIGKILL)
        p.wait()
        return "said so" if said else "SILENT", MOST, None


def main():
    names, failed, worst, ended = sorted(JOBS), 0, 0.0, 0
    only = os.environ.get("DS_SIGNAL_ONLY")
    for case in range(CASES):
        rng = random.Random(SEED * 1000003 + case)
        name = only or names[(case + SEED * 7) % len(names)]
        how, seconds, code = one(name, rng, case)
        worst, ended = max(worst, seconds), ended + (how == "ended before")
        wrong = how == "SILENT" or (how == "" and code not in (None, 0))
        if os.environ.get("DS_SIGNAL_TELL") or wrong:
            print("%s%s: case %d of seed %d: %s after %.2f s, code %s" % ("FAILED: " if wrong else "", name, case, SEED, how or "ended", seconds, code))
        if wrong:
            failed += 1
            print(open("log%d" % case, "rb").read()[-500:].decode(errors="replace"))
    print("%d signals, %d tools ended before, slowest end %.2f s, %d wrong" % (CASES, ended, worst, failed))
    return 1 if failed or ended > CASES * 3 / 4 else 0


sys.exit(main())
