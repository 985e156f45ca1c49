# SPDX-License-Identifier: Apache-2.0
"""Random data files, their rows compared with a program's: data_rows.py PROGRAM FILES SEED.

PROGRAM (test/programs/data_rows.c) prints a JSON object a row of each file that it is given. Parquet files differ in schema
(structs, lists and maps, nested), nulls, compression, encodings, version of pages, sizes of pages and row groups, dictionaries;
.csv and .tsv in quotes, line breaks, missing cells and blank lines; .json in white space. Compared with pyarrow, with pandas
(columns as texts) and with Python's json. Needs pyarrow and pandas. Exit 1 on a difference.
"""
import csv
import datetime
import gzip
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile

import pandas
import pyarrow as pa
import pyarrow.parquet as pq

WORDS = ["", "a", "user", "assistant", "\u00e9t\u00e9", "\U0001f600", "line\nbreak", "quote\"s", "x" * 300, "\u0000nul", "tab\t", "\x7f"]


def random_type(rng, depth):
    """A type, and a function that makes a value of it."""
    kind = rng.randrange(16 if depth < 4 else 11)
    if kind < 4:
        few = rng.random() < 0.4
        return pa.string() if rng.random() < 0.8 else pa.large_string(), lambda: rng.choice(WORDS) if few else "".join(
            rng.choice(WORDS) for _ in range(rng.randrange(4)))
    if kind == 4:
        return pa.bool_(), lambda: rng.random() < 0.5
    if kind == 5:
        bits = rng.choice([8, 16, 32, 64])
        if rng.random() < 0.5:
            return getattr(pa, f"int{bits}")(), lambda: rng.choice(
                [0, 1, -1, rng.randrange(-2 ** (bits - 1), 2 ** (bits - 1)), -2 ** (bits - 1), 2 ** (bits - 1) - 1])
        return getattr(pa, f"uint{bits}")(), lambda: rng.choice([0, 1, rng.randrange(2 ** bits), 2 ** bits - 1])
    if kind == 6:
        return pa.int64(), lambda: rng.randrange(1000)
    if kind == 7:
        return pa.float64(), lambda: rng.choice([0.0, 1.0, -0.5, 1e300, 1e-7, rng.random(), float("nan"), float("inf")])
    if kind == 8:
        return pa.float32(), lambda: float(pa.scalar(rng.choice([0.0, 2.5, rng.random(), 1e30]), pa.float32()).as_py())
    if kind == 9:
        return pa.date32(), lambda: datetime.date(1970, 1, 1) + datetime.timedelta(days=rng.randrange(-100000, 100000))
    if kind == 10:
        unit = rng.choice(["ms", "us"])
        zone = rng.choice([None, "UTC"])
        return pa.timestamp(unit, tz=zone), lambda: datetime.datetime(
            1970, 1, 1, tzinfo=datetime.timezone.utc if zone else None) + datetime.timedelta(
                milliseconds=rng.randrange(-10 ** 13, 10 ** 13))
    if kind < 13:
        fields = [(f"f{i}" if rng.random() < 0.8 else f"\u00fc {i}", *random_type(rng, depth + 1), rng.random() < 0.2)
                  for i in range(rng.randrange(1, 4))]
        names = [f[0] for f in fields]
        if len(set(names)) < len(names):
            return random_type(rng, depth)
        struct = pa.struct([pa.field(n, t, nullable=not r) for n, t, _, r in fields])
        return struct, lambda: {n: value(rng, m, required=r) for n, _, m, r in fields}
    inner, make = random_type(rng, depth + 1)
    if kind == 13 and depth < 3:
        return pa.map_(pa.string(), inner), lambda: {
            k: value(rng, make) for k in rng.sample(["a", "b", "c", "\u00e9"], rng.randrange(4))}
    size = rng.choice([2, 2, 4, 30])
    required = rng.random() < 0.3
    return pa.list_(pa.field("element", inner, nullable=not required)), lambda: [
        value(rng, make, required) for _ in range(rng.randrange(size))]


def value(rng, make, required=False):
    return None if not required and rng.random() < 0.15 else make()


def expected(x):
    """As JSON gives it."""
    if isinstance(x, float):
        return x if math.isfinite(x) else None
    if isinstance(x, (datetime.date, datetime.datetime)):
        return x.isoformat()
    if isinstance(x, dict):
        return {k: expected(v) for k, v in x.items()}
    if isinstance(x, list):
        return [expected(v) for v in x]
    return x


def same(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return a == b or float(pa.scalar(a, pa.float32()).as_py()) == float(pa.scalar(b, pa.float32()).as_py())
    return a == b


def encodings(rng, schema):
    """An encoding for some of the flat columns."""
    chosen = {}
    for field in schema:
        if pa.types.is_integer(field.type) and field.type.bit_width >= 32:
            chosen[field.name] = rng.choice(["PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"])
        elif pa.types.is_floating(field.type):
            chosen[field.name] = rng.choice(["PLAIN", "BYTE_STREAM_SPLIT"])
        elif pa.types.is_string(field.type):
            chosen[field.name] = rng.choice(["PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"])
        elif pa.types.is_boolean(field.type):
            chosen[field.name] = rng.choice(["PLAIN", "RLE"])
    return chosen


def write(rng, path):
    fields = []
    for i in range(rng.randrange(1, 6)):
        kind, make = random_type(rng, 0)
        fields.append((f"c{i}", kind, make, rng.random() < 0.2))
    schema = pa.schema([pa.field(n, t, nullable=not r) for n, t, _, r in fields])
    n = rng.choice([0, 1, 7, 50, 300])
    rows = [{name: value(rng, make, required) for name, _, make, required in fields} for _ in range(n)]
    table = pa.Table.from_pylist(rows, schema=schema)
    own = rng.random() < 0.5
    pq.write_table(
        table, path, compression=rng.choice(["snappy", "zstd", "gzip", "none"]),
        use_dictionary=False if own else rng.choice([True, False]), column_encoding=encodings(rng, schema) if own else None,
        data_page_version=rng.choice(["1.0", "2.0"]), data_page_size=rng.choice([64, 1000, 1 << 20]),
        row_group_size=rng.choice([3, 40, 1000]), write_page_checksum=rng.random() < 0.5,
        use_compliant_nested_type=rng.random() < 0.8, version=rng.choice(["1.0", "2.4", "2.6"]),
        write_batch_size=rng.choice([1, 16, 1024]))
    read = pq.read_table(path)
    if read.num_rows != pq.ParquetFile(path).metadata.num_rows:
        read = table  # pyarrow 26 reads no row of a group of booleans in runs whose lists are all null
    return [expected(r) for r in read.to_pylist(maps_as_pydicts="strict")]


CELLS = ["", "a", "NA", "null", "None", "x,y", "tab\there", "two\nlines", "\"quoted\"", "a\"b", " spaces ", "1", "1.50", "true", "\u00e9\U0001f600", "nan ", "\r\n"]


def write_records(rng, path):
    """A .csv or .tsv, read back by pandas."""
    tabs = path.name.endswith(".tsv")
    names = rng.sample(["a", "b", "the text", "\u00fc", "x,y", "q\"q", "1"], rng.randrange(1, 5))
    end = rng.choice(["\n", "\r\n"])
    with open(path, "w", newline="", encoding=rng.choice(["utf-8", "utf-8-sig"])) as f:
        writer = csv.writer(f, delimiter="\t" if tabs else ",", lineterminator=end, quoting=rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
        writer.writerow(names)
        for _ in range(rng.randrange(30)):
            cells = [rng.choice(CELLS) for _ in names]
            if any(cells) or len(cells) > 1:
                writer.writerow(cells)
            if rng.random() < 0.1 and len(names) > 1:
                f.write(rng.choice(["", " ", "   " if tabs else " \t "]) + end)
            if rng.random() < 0.1 and len(names) > 1:
                writer.writerow(["short"])
    frame = pandas.read_csv(path, sep="\t" if tabs else ",", dtype=str)
    # Cells that a record lacks are null for pandas, and left out here.
    short = {"short"} if len(names) > 1 else set()
    return [{k: v if isinstance(v, str) else None for i, (k, v) in enumerate(row.items())
             if i == 0 or row[names[0]] not in short} for row in frame.to_dict("records")]


def random_json(rng, depth=0):
    kind = rng.randrange(7 if depth < 4 else 5)
    if kind < 3:
        return "".join(rng.choice(WORDS + ["\\", "]", "}", "{[", "\\\""]) for _ in range(rng.randrange(4)))
    if kind < 5:
        return rng.choice([None, True, False, 1, -2, 0.5, 1e-7])
    if kind == 5:
        return [random_json(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(WORDS[1:5]) + str(i): random_json(rng, depth + 1) for i in range(rng.randrange(4))}


def write_list(rng, path):
    rows = [{"k": random_json(rng)} for _ in range(rng.randrange(20))]
    text = json.dumps(rows, indent=rng.choice([None, 0, 2]), ensure_ascii=rng.random() < 0.5)
    if rng.random() < 0.3:
        text = rng.choice(["", " ", "\n"]).join(json.dumps(r, indent=rng.choice([None, 1])) for r in rows)
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.name.endswith(".gz") else data)
    return rows


KINDS = [(".parquet", write, 6), (".csv", write_records, 2), (".tsv", write_records, 1), (".json", write_list, 2), (".json.gz", write_list, 1)]


def values(text):
    """The JSON values of a text; the rest as a text where it is none."""
    found = []
    at = 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        try:
            value_here, at = json.JSONDecoder().raw_decode(text, at)
        except ValueError:
            return found + [text[at:]]
        found.append(value_here)
    return found


def main():
    program, n_files, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(seed)
    rows_seen = 0
    bad = refused = 0
    with tempfile.TemporaryDirectory() as folder:
        for i in range(n_files):
            ending, make, _ = rng.choices(KINDS, [k[2] for k in KINDS])[0]
            path = pathlib.Path(folder, f"{i}{ending}")
            try:
                want = make(rng, path)
            except (pa.ArrowNotImplementedError, pa.ArrowInvalid, OSError):
                refused += 1
                continue
            text = subprocess.run([program, path], capture_output=True, check=False).stdout.decode()
            have = values(text)
            rows_seen += len(want)
            if not same(want, have):
                bad += 1
                print(f"file {i} (seed {seed}) differs:", pq.read_schema(path) if ending == ".parquet" else path.read_bytes()[:400])
                for w, h in zip(want, have):
                    if not same(w, h):
                        print("  want", w, "\n  have", h)
                        break
                else:
                    print(f"  {len(want)} rows, found {len(have)}: {have[-1:]}")
            path.unlink()
    print(f"data files: {n_files} ({refused} of them pyarrow did not write), {rows_seen} rows, {bad} files differ")
    return 1 if bad or rows_seen == 0 else 0


sys.exit(main())
