# SPDX-License-Identifier: Apache-2.0
"""Random rows of every schema, their ids and loss mask as ours and as TRL's preparation: data_schemas.py PROGRAM ROWS SEED.

The rows of a schema come in one container: .jsonl, .json, .csv (lists as JSON texts), .parquet.
PROGRAM is test/programs/schema_rows.c. Rows and oracle are those of test/golden/data/make_schemas.py. Needs datasets, transformers
and TRL. Exit 1 on a difference.
"""
import csv
import gzip
import itertools
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import pyarrow as pa
import pyarrow.parquet as pq
import trl

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "golden" / "data"))
import make_schemas  # noqa: E402


def write(rng, folder, lines):
    """The lines in a container that can hold them."""
    kind = rng.choice([".jsonl", ".json", ".jsonl.gz", ".parquet", ".parquet", ".csv"])
    path = pathlib.Path(folder, "rows" + kind)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    names = list(dict.fromkeys(name for line in lines for name in line))
    if kind == ".parquet":
        try:
            pq.write_table(pa.Table.from_pylist([{n: line.get(n) for n in names} for line in lines]), path)
            return path
        except (pa.ArrowInvalid, pa.ArrowTypeError):  # a column of lists and texts, an empty struct
            path = path.with_suffix(".jsonl")
    if kind == ".csv":
        with open(path, "w", newline="") as f:
            writer = csv.DictWriter(f, names, quoting=csv.QUOTE_ALL)  # a line of white space is no row
            writer.writeheader()
            writer.writerows({k: v if isinstance(v, str) else "" if v is None else json.dumps(v) for k, v in line.items()} for line in lines)
    elif kind == ".json":
        path.write_text(json.dumps(lines))
    else:
        path.write_bytes(gzip.compress(text.encode()) if kind.endswith(".gz") else text.encode())
    return path


def ours(program, folder, path):
    done = subprocess.run([program, folder, "", "", path], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def model_folder(folder, name, bos, eos, template):
    folder = pathlib.Path(folder)
    (folder / "tokenizer.json").write_text((make_schemas.HERE / name).read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": bos, "eos_token": eos}))
    (folder / "chat_template.jinja").write_text(template)


def difference(case, have):
    """Which parts differ. Only preferences have a second answer."""
    keys = ["schema", "ids", "mask"] + (["n_chosen"] if case["n_chosen"] else [])
    return [k for k in keys if have.get(k) != case[k]]


def show(tok, name, case, have, wrong):
    print(f"{name}, {case['of']}: {wrong} {have.get('error', '')}\n  {json.dumps(case['line'], ensure_ascii=False)}")
    for label, of in (("want", case), ("have", have)):
        print(f"  {label}", list(zip(tok.convert_ids_to_tokens(of.get("ids", [])), of.get("mask", []))))


def trained_templates(program, rng, n):
    """Chats by each of TRL's own templates with {% generation %}: rows seen, and those that differ."""
    seen = bad = 0
    folder_of = pathlib.Path(trl.__file__).parent / "chat_templates"
    name, eos, bos = "tokenizer-qwen2.json", "<|im_end|>", "<|endoftext|>"
    for path in sorted(folder_of.glob("*_training.jinja")):
        tok, _, _ = make_schemas.tokenizer(name)
        tok.bos_token, tok.chat_template = bos, path.read_text()
        # A turn that ends with a character of several tokens: transformers leaves the last of them out.
        lines = [{"messages": [{**m, "content": m["content"] + "."} for m in make_schemas.chat(rng)]} for _ in range(n)]
        with tempfile.TemporaryDirectory() as folder:
            model_folder(folder, name, bos, eos, tok.chat_template)
            found = pathlib.Path(folder, "rows.jsonl")
            found.write_text("".join(json.dumps(line) + "\n" for line in lines))
            for line, have in zip(lines, ours(program, folder, found), strict=True):
                try:
                    ids, mask, _ = make_schemas.prepare(tok, [json.loads(json.dumps(line))])[0]
                except Exception:  # the template refuses these roles, or parts are what it wants
                    ids = mask = None
                seen += 1
                if have.get("ids") != ids or have.get("mask") != mask:
                    bad += 1
                    print(f"{path.name}: {have.get('error', 'differs')}\n  {json.dumps(line)[:300]}")
    return seen, bad


def main():
    program, n, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(seed)
    bad, seen, of, kinds = 0, 0, {}, {}
    for name in make_schemas.TOKENIZERS:
        tok, bos, eos = make_schemas.tokenizer(name)
        cases = list(make_schemas.cases(rng, tok, n))
        for schema, group in itertools.groupby(cases, lambda c: c["of"]):
            with tempfile.TemporaryDirectory() as folder:
                model_folder(folder, name, bos, eos, make_schemas.OWN_TEMPLATE)
                group = list(group)
                path = write(rng, folder, [c["line"] for c in group])
                if path.suffix == ".csv":  # an empty cell is null there, and a row that lacks what it must have is refused
                    group = [c if all(c["line"].values()) else None for c in group]
                kinds[path.suffix] = kinds.get(path.suffix, 0) + 1
                for case, have in zip(group, ours(program, folder, path), strict=True):
                    wrong = difference(case, have) if case else []
                    seen += case is not None
                    bad += bool(wrong)
                    of[schema] = of.get(schema, 0) + (case is not None)
                    if wrong and bad < 6:
                        show(tok, f"{name}, {path.name}", case, have, wrong)
    chats, wrong = trained_templates(program, rng, 10)
    print(f"chats by TRL's templates: {chats}, {wrong} differ")
    seen, bad = seen + chats, bad + wrong
    print(f"rows of data (seed {seed}): {seen} in {len(of)} schemas, {bad} differ")
    print(", ".join(f"{k} {v}" for k, v in (of | kinds).items()))
    return 1 if bad or seen == 0 else 0


sys.exit(main())
