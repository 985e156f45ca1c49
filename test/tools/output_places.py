# SPDX-License-Identifier: Apache-2.0
"""Every output path of every tool, at every kind of place: links stay links, devices stay devices, inputs
stay as they are, and the bytes come where the path leads, or the tool says why not and fails.

Usage: output_places.py BUILD. A row of OUTPUTS is an output, a row of KINDS a kind of place; all pairs run that make
sense. As root the devices are made in the scratch folder: a tool that went wrong would cost this machine its own.
"""
import concurrent.futures
import hashlib
import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tempfile
import threading

BUILD = pathlib.Path(sys.argv[1]).resolve()
ROOT = os.geteuid() == 0
CHECKED = b"__asan_init" in (BUILD / "deepspeed").read_bytes()  # its shadow is more than a trial may ask for
OLD = b"what stood here before\n"
MODE = 0o640
FOLDERS = []  # besides the scratch folder, removed at the end
SHOWN = 600  # characters of a message


# ---- places: each makes what stands at `at`, and returns what is expected there ----

class Place:
    """give: the path for the tool. ends: the file that gets the bytes, or None. refused: words of the message."""

    def __init__(self, give, ends=None, refused=None, mode=None, kept=b"", read=None, stdout=None, stdin=None):
        self.give, self.ends, self.refused, self.mode, self.kept = give, ends, refused, mode, kept
        self.read, self.stdout, self.stdin = read, stdout, stdin


def new(at):
    return Place(at, ends=at)


def old_file(path):
    path.write_bytes(OLD)
    path.chmod(MODE)
    return path


def file(at):
    return Place(at, ends=old_file(at), mode=MODE)


def elsewhere(at, name):
    folder = at.parent / "elsewhere"
    folder.mkdir(exist_ok=True)
    return folder / name


def link(at):
    target = old_file(elsewhere(at, "target"))
    at.symlink_to("elsewhere/target")
    return Place(at, ends=target, mode=MODE)


def link_to_link(at):
    target = old_file(elsewhere(at, "target"))
    elsewhere(at, "second").symlink_to("target")  # relative to its own folder
    at.symlink_to(elsewhere(at, "second"))
    return Place(at, ends=target, mode=MODE)


def link_to_other_disk(at):
    """A rename does not reach there. Without another disk: as `link`."""
    shared_memory = pathlib.Path("/dev/shm")
    if not os.access(shared_memory, os.W_OK) or shared_memory.stat().st_dev == at.parent.stat().st_dev:
        return link(at)
    elsewhere_folder = pathlib.Path(tempfile.mkdtemp(dir=shared_memory))
    FOLDERS.append(elsewhere_folder)
    target = old_file(elsewhere_folder / "target")
    at.symlink_to(target)
    return Place(at, ends=target, mode=MODE)


def dangling(at):
    target = elsewhere(at, "to_be")
    at.symlink_to("elsewhere/to_be")
    return Place(at, ends=target)


def dangling_folder(at):
    at.symlink_to("nowhere/to_be")
    return Place(at, refused=["No such file or directory"])


def loop(at):
    at.symlink_to(at.name)
    return Place(at, refused=["Too many levels of symbolic links"])


def device(at, name, minor):
    if not ROOT:
        return pathlib.Path("/dev") / name
    os.mknod(at, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
    return at


def null(at):
    return Place(device(at, "null", 3))


def link_to_null(at):
    at.symlink_to(device(elsewhere(at, "device"), "null", 3))
    return Place(at)


def full(at):
    return Place(device(at, "full", 7), refused=["No space left on device"])


def link_to_full(at):
    at.symlink_to(device(elsewhere(at, "device"), "full", 7))
    return Place(at, refused=["No space left on device"])


def fifo(at):
    os.mkfifo(at)
    return Place(at, read=at)


def link_to_fifo(at):
    pipe = elsewhere(at, "pipe")
    os.mkfifo(pipe)
    at.symlink_to(pipe)
    return Place(at, read=pipe)


def fifo_in_folder(at):
    os.mkfifo(at)
    return Place(at, refused=["no regular file"])


def null_in_folder(at):
    device_at = device(elsewhere(at, "device"), "null", 3)
    at.symlink_to(device_at)
    return Place(at, refused=["no regular file"])


def folder(at):
    at.mkdir()
    return Place(at, refused=["it is a folder"])


def link_to_folder(at):
    elsewhere(at, "folder").mkdir()
    at.symlink_to("elsewhere/folder")
    return Place(at, refused=["it is a folder"])


def slash(at):
    return Place(f"{at}/", refused=["it is a folder", "No such file or directory"])


def missing_folder(at):
    return Place(at.parent / "missing" / at.name, refused=["No such file or directory"])


def under_file(at):
    above = old_file(at.parent / "above")
    return Place(above / at.name, refused=["Not a directory"])


def proc(at):
    return Place(f"/proc/{at.name}", refused=["cannot write"])


def read_only(at):
    old_file(at).chmod(0o444)
    return Place(at, ends=at, mode=0o444) if ROOT else Place(at, refused=["Permission denied"])


def closed_folder(at):
    at.parent.chmod(0o555)
    return Place(at, ends=at) if ROOT else Place(at, refused=["Permission denied"])


def stdout_pipe(at):
    at.symlink_to("/proc/self/fd/1")
    return Place(at, stdout="pipe")


def stdout_file(at):
    """Appended to, as with >>: what is there stays, and what the tool prints besides stays too."""
    log = old_file(elsewhere(at, "log"))
    at.symlink_to("/proc/self/fd/1")
    return Place(at, ends=log, mode=MODE, kept=OLD, stdout=log)


def stdin_closed_to_writing(at):
    at.symlink_to("/proc/self/fd/0")
    return Place(at, refused=["open for reading only"], stdin=os.devnull)


FILES = [new, file, link, link_to_link, link_to_other_disk, dangling, read_only]
REFUSED = [dangling_folder, loop, folder, link_to_folder]
PATHS = [slash, missing_folder, under_file, proc, closed_folder, stdin_closed_to_writing]
STREAMS = [null, link_to_null, full, link_to_full, fifo, link_to_fifo, stdout_pipe, stdout_file]
ALL = FILES + REFUSED + PATHS + STREAMS
EARLY = REFUSED + [k for k in PATHS if k is not closed_folder or not ROOT]
FIXED = FILES + [dangling_folder, loop, folder]  # in a folder, under a name that the tool chooses


# ---- outputs ----

class Output:
    """args(place path, case folder): the words. kinds: those that make sense. code: exit codes of a refusal."""

    def __init__(self, name, args, kinds, right, work, code=(1,), at="out", config=None, inputs=(), beside=()):
        self.name, self.args, self.kinds, self.right, self.work = name, args, kinds, right, work
        self.code, self.at, self.config, self.inputs, self.beside = code, at, config, inputs, beside


def has(*words):
    return lambda data: all(word in data for word in words)


SMALL = ["--model_config", "in/gpt.json"]


def train(*more, config="in/ds.json"):
    return ["ds_train", *SMALL, "--tokenizer", "bytes", "--data", "in/text.txt", "--deepspeed_config", config, "--steps",
            "1", "--threads", "1", *more]


def with_config(section):
    def args(path, case):
        values = json.loads(pathlib.Path("in/ds.json").read_text())
        values.update(section(path))
        config = case.parent / f"{case.name}.json"
        config.write_text(json.dumps(values))
        return train("--metrics", "/dev/null", "--overwrite", config=str(config))
    return args


def monitor(kind):
    return with_config(lambda path: {kind: {"enabled": True, "output_path": os.path.dirname(os.path.dirname(path)), "job_name": "job"}})


def search(_, case):
    """One trial; the folders of the search are in the case's."""
    values = json.loads(pathlib.Path("in/ds.json").read_text())
    values["autotuning"] = {"enabled": True, "results_dir": str(case / "at/results"), "exps_dir": str(case / "at/exps"),
                            "tuner_num_trials": 1, "start_profile_step": 1, "end_profile_step": 1,
                            "max_train_micro_batch_size_per_gpu": 1, "num_tuning_micro_batch_sizes": 1}
    config = case.parent / f"{case.name}.json"
    config.write_text(json.dumps(values))
    words = train(config=str(config))
    return ["deepspeed", "--device", "xeon-amx-2", "--num_gpus", "1", "--autotuning", "tune", str(BUILD / words[0]), *words[1:]]


def plan(flag, *more):
    return lambda path, case: ["ds_plan", *SMALL, "--deepspeed_config", "in/ds.json", "--threads", "1", "--memory", "1GB",
                               *more, "--overwrite", flag, path]


OUTPUTS = [
    Output("ds_train --metrics", lambda path, case: train("--metrics", path, "--overwrite"), ALL, has(b'{"step":1,'), b"step 1/1"),
    Output("ds_train --trace", lambda path, case: train("--trace", path, "--overwrite"), ALL, has(b'"traceEvents"'), b"step 1/1"),
    Output("flops_profiler.output_file",
           with_config(lambda path: {"flops_profiler": {"enabled": True, "profile_step": 0, "output_file": str(path)}}),
           [k for k in ALL if k not in (missing_folder, slash)], has(b"Flops Profiler"), b"step 1/1"),  # its folder is made
    Output("autotuning.metric_path",
           with_config(lambda path: {"autotuning": {"enabled": True, "start_profile_step": 1, "end_profile_step": 1,
                                                    "metric_path": str(path)}}),
           ALL, has(b'"throughput"'), b"step 1/1"),
    Output("autotuning.model_info_path",
           with_config(lambda path: {"autotuning": {"enabled": True, "start_profile_step": 1, "end_profile_step": 1,
                                                    "metric_path": "/dev/null" if not ROOT else f"{path}.metric",
                                                    "model_info": {"profile": True}, "model_info_path": str(path)}}),
           FILES + REFUSED + [null, fifo], has(b'"num_params"'), b"step 1/1", beside=("out.metric",)),
    Output("csv_monitor", monitor("csv_monitor"), [new, link, link_to_link, dangling, null, link_to_null, fifo] + REFUSED,
           has(b"1,"), b"step 1/1", at="job/Train_Samples_lr.csv",
           beside=("job/Train_Samples_train_loss.csv",)),
    *[Output(f"ds_train --output: {name}",
             lambda path, case: train("--output", os.path.dirname(path), "--overwrite"),
             FIXED + [fifo_in_folder, null_in_folder], right, b"step 1/1", at=name, beside="*")
      for name, right in (("model.safetensors", has(b"__metadata__")), ("latest", has(b"global_step1")),
                          ("tokenizer.json", has(b"version")))],
    *[Output(f"deepspeed --autotuning: {name}", search, [new, file, link, link_to_link, dangling, dangling_folder, folder],
             right, b"Traceback", code=(1, 2, 3), at=f"at/{name}", beside="*")
      for name, right in (("results/results.json", has(b"measured")), ("results/ds_config_optimal.json", has(b"optimizer")),
                          ("exps/z0_gas1_tmbspg1_rcnone.json", has(b"measured")))],
    Output("ds_plan --json", plan("--json"), ALL, has(b'"ds_plan": 1'), b"planned in", inputs=("ds.json", "gpt.json")),
    Output("ds_plan --html", plan("--html"), ALL, has(b"<svg"), b"planned in", inputs=("gpt.json",)),
    Output("ds_plan --trace", plan("--trace", "--device", "h100-sxm"), ALL, has(b'"traceEvents"'), b"planned in"),
    Output("ds_plan --output", plan("--output", "--fit"), ALL, has(b'"train_micro_batch_size_per_gpu"'), b"planned in"),
    Output("ds_plan diff --trace", lambda path, case: ["ds_plan", "diff", "in/a.trace", "in/b.trace", "--overwrite", "--trace", path], ALL,
           has(b'"traceEvents"'), b"total", inputs=("a.trace", "b.trace")),
    Output("ds_nvme_tune --output",
           lambda path, case: ["ds_nvme_tune", "--nvme_dir", "in", "--io_size", "1M", "--sweep_config", "in/sweep.json",
                               "--output", path], ALL, has(b'"aio"'), b"Best performance", code=(1, 2),
           inputs=("sweep.json",)),
    Output("ds_bench --profile", lambda path, case: ["ds_bench", "--profile", path], EARLY, None, b"measuring"),
    *[Output(f"ds_data tokenize {end}",
             lambda path, case: ["ds_data", "tokenize", "in/text.txt", "--tokenizer", "bytes", "--overwrite", "--output",
                                 str(path).removesuffix(".bin").removesuffix(".idx")],
             FILES + REFUSED + [null, link_to_null, full, link_to_full, fifo, link_to_fifo, closed_folder], right,
             b"tokens in", at=f"out{end}", inputs=("text.txt",), beside=("out.bin", "out.idx"))
      for end, right in ((".bin", has(b"l\0i\0n\0e\0")), (".idx", has(b"MMIDIDX")))],
    *[Output(name, lambda path, case, words=words: [*words, os.path.dirname(path), "--overwrite"],
             FIXED + [fifo_in_folder, null_in_folder], has(b"__metadata__"), b"Saved", code=(1, 3), at="model.safetensors",
             beside=("config.json", "tokenizer.json", "tokenizer_config.json"))
      for name, words in (("ds_checkpoint export", ["ds_checkpoint", "export", "in/run"]),
                          ("zero_to_fp32", ["zero_to_fp32", "in/run"]))],
]


# ---- a case ----

def look(path):
    """What must not change: the kind, and the text of a link, the number of a device."""
    st = os.lstat(path)
    kind = stat.S_IFMT(st.st_mode)
    return kind, os.readlink(path) if stat.S_ISLNK(kind) else None, st.st_rdev


def tree(top):
    return {str(p.relative_to(top)): look(p) for p in top.rglob("*")}


def content(top):
    return {str(p.relative_to(top)): hashlib.sha256(p.read_bytes()).hexdigest()
            for p in sorted(top.rglob("*")) if p.is_file() and not p.is_symlink()}


def call(output, place, case):
    """Exit code, what it said, and what came through a pipe."""
    came = []
    reader = None
    if place.read is not None:
        reader = threading.Thread(target=lambda: came.append(open(place.read, "rb").read()), daemon=True)
        reader.start()
    words = [str(w) for w in output.args(place.give, case)]
    to_file = isinstance(place.stdout, pathlib.Path)
    with open(place.stdin or os.devnull, "rb") as stdin, open(place.stdout if to_file else os.devnull, "ab") as log:
        done = subprocess.run([BUILD / words[0], *words[1:]], stdin=stdin, stdout=log if to_file else subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=60, check=False)
    if reader is not None:
        reader.join(10)
    piped = done.stdout if place.stdout == "pipe" else came[0] if came else b""
    return done.returncode, done.stderr + (done.stdout or b""), piped


def wrong(output, kind, case):
    """What is wrong with it, or None."""
    at = case / output.at
    at.parent.mkdir(parents=True, exist_ok=True)
    place = kind(at)
    before, held = tree(case), content(case)
    code, said, piped = call(output, place, case)
    text = said.decode(errors="replace")
    ends = os.path.relpath(place.ends, case) if place.ends else None
    for name, what in before.items():
        if tree(case).get(name) != what:
            return f"{name} is no longer what it was: {text}"
    new_names = [n for n in tree(case) if n not in before and n != ends and n not in output.beside]
    if ".ds_tmp." in " ".join(new_names) or (new_names and output.beside != "*"):
        return f"left behind: {new_names}"
    for name, digest in content(case).items():
        if name in held and name != ends and name not in output.beside and digest != held[name]:
            return f"{name} was changed"
    if place.refused:
        if code not in output.code or not any(word in text for word in place.refused):
            return f"expected a refusal, exit {output.code}, that says {place.refused}; got {code}: {text}"
        early = "No space left on device" not in place.refused
        if early and (output.work in said or b"in training step" in said) and output.at != "job/Train_Samples_lr.csv":
            return f"refused after the work: {text}"
        return None
    if code != 0:
        return f"exit {code}: {text}"
    data = place.ends.read_bytes() if place.ends else piped
    if place.ends or piped or place.read:
        if not output.right(data):
            return f"other content: {data[:200]}"
        if not data.startswith(place.kept) or (not place.kept and OLD in data and "csv" not in output.name):
            return f"the old content: {data[:200]}"
    if place.mode is not None and stat.S_IMODE(place.ends.stat().st_mode) != place.mode:
        return f"mode {stat.S_IMODE(place.ends.stat().st_mode):o}, expected {place.mode:o}"
    return None


def input_itself(output, name, by_link, case):
    """An output that is an input, by its name or through a link."""
    path = case / "again"
    source = pathlib.Path("in", name)
    if output.at != "out":  # the tool adds an ending
        path = case / output.at
        by_link = True
    if by_link:
        path.symlink_to(source.resolve())
    before = source.read_bytes()
    place = Place(path if by_link else source)
    code, said, _ = call(output, place, case)
    if source.read_bytes() != before or code == 0 or b"also an input" not in said:
        return f"exit {code}: {said.decode(errors='replace')}"
    return None


# ---- all of them ----

def make_inputs():
    os.mkdir("in")
    pathlib.Path("in/gpt.json").write_text(json.dumps(
        {"model_type": "gpt2", "vocab_size": 256, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2,
         "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}))
    pathlib.Path("in/ds.json").write_text(json.dumps(
        {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}))
    pathlib.Path("in/text.txt").write_text("".join(f"line {i}\n" for i in range(40)))
    pathlib.Path("in/sweep.json").write_text('{"block_size": ["1M"], "queue_depth": [4], "io_parallel": [1], '
                                             '"single_submit": [false], "sequential_requests": [false]}')
    subprocess.run([BUILD / "ds_train", *train("--output", "in/run")[1:]], check=True, capture_output=True)
    for name in ("a", "b"):
        subprocess.run([BUILD / "ds_train", *train("--trace", f"in/{name}.trace")[1:]], check=True, capture_output=True)


def main():
    cases = []
    only = sys.argv[2] if len(sys.argv) > 2 else ""
    shared = {name: look(f"/dev/{name}") for name in ("null", "full", "stdin", "stdout", "stderr")}
    make_inputs()
    for output in OUTPUTS:
        if CHECKED and output.name.startswith("deepspeed --autotuning"):
            continue
        kinds = [k for k in output.kinds if ROOT or output.at == "out" or k not in (null, full)]  # no name of /dev fits
        cases += [(f"{output.name}: {kind.__name__}", wrong, (output, kind)) for kind in kinds]
        cases += [(f"{output.name}: input {name}{' by a link' if by_link else ''}", input_itself, (output, name, by_link))
                  for name in output.inputs for by_link in (False, True)]
    cases = [c for c in cases if only in c[0]]
    held = content(pathlib.Path("in"))

    def run(item):
        number, (name, check, args) = item
        folder_of_case = pathlib.Path(f"case{number}").resolve()
        folder_of_case.mkdir()
        try:
            problem = check(*args, folder_of_case)
        except Exception as error:  # pylint: disable=broad-except
            problem = repr(error)
        folder_of_case.chmod(0o755)
        return name, problem

    with concurrent.futures.ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as pool:
        results = list(pool.map(run, enumerate(cases)))
    bad = [f"FAILED: {name}: {problem[:SHOWN]}" for name, problem in results if problem is not None]
    if content(pathlib.Path("in")) != held:
        bad.append("FAILED: an input was changed")
    if shared != {name: look(f"/dev/{name}") for name in shared}:
        bad.append("FAILED: a file of /dev was changed")
    if not only and len(cases) < 300:
        bad.append(f"FAILED: only {len(cases)} cases")
    print("\n".join(bad) if bad else f"{len(cases)} output paths: links, devices and inputs are what they were")
    return 1 if bad else 0


if __name__ == "__main__":
    scratch = tempfile.mkdtemp()
    os.chdir(scratch)
    try:
        code = main()
    finally:
        os.chdir("/")
        for made in [scratch, *FOLDERS]:
            shutil.rmtree(made, ignore_errors=True)
    sys.exit(code)
