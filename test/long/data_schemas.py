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
            writer = csv.DictWriter(f, names)
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


def model_folder(folder, name, bos, eos):
    folder = pathlib.Path(folder)
    (folder / "tokenizer.json").write_text((make_schemas.HERE / name).read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": bos, "eos_token": eos}))
    (folder / "chat_template.jinja").write_text(make_schemas.OWN_TEMPLATE)


def difference(case, have):
    """Which parts differ. Only preferences have a second answer."""
    keys = ["schema", "ids", "mask"] + (["n_chosen"] if case["n_chosen"] else [])
    return [k for k in keys if have.get(k) != case[k]]


def show(tok, name, case, have, wrong):
    print(f"{name}, {case['of']}: {wrong} {have.get('error', '')}\n  {json.dumps(case['line'], ensure_ascii=False)}")
    for label, of in (("want", case), ("have", have)):
        print(f"  {label}", list(zip(tok.convert_ids_to_tokens(of.get("ids", [])), of.get("mask", []))))


def main():
    program, n, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(seed)
    bad, seen, of, kinds = 0, 0, {}, {}
    for name in make_schemas.TOKENIZERS:
        tok, bos, eos = make_schemas.tokenizer(name)
        cases = list(make_schemas.cases(rng, tok, n))
        for schema, group in itertools.groupby(cases, lambda c: c["of"]):
            with tempfile.TemporaryDirectory() as folder:
                model_folder(folder, name, bos, eos)
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
    print(f"rows of data (seed {seed}): {seen} in {len(of)} schemas, {bad} differ")
    print(", ".join(f"{k} {v}" for k, v in (of | kinds).items()))
    return 1 if bad or seen == 0 else 0


sys.exit(main())
