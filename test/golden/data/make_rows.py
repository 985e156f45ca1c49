# SPDX-License-Identifier: Apache-2.0
"""Small Parquet files by pyarrow and their rows, for test_rows.c: make_rows.py (needs pyarrow)."""
import datetime
import json
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

FOLDER = pathlib.Path(__file__).parent / "rows"

CHAT = pa.schema([
    pa.field("messages", pa.list_(pa.struct([
        pa.field("role", pa.string(), nullable=False), ("content", pa.string()),
        ("tool_calls", pa.list_(pa.struct([("name", pa.string()), ("arguments", pa.map_(pa.string(), pa.int64()))])))]))),
    ("score", pa.float64()), ("tags", pa.list_(pa.list_(pa.string())))])
CHAT_ROWS = [
    {"messages": [{"role": "user", "content": "hi", "tool_calls": None},
                  {"role": "assistant", "content": None, "tool_calls": [{"name": "f", "arguments": {"a": 1, "b": None}}]}],
     "score": 0.5, "tags": [["x", None], [], None]},
    {"messages": [], "score": None, "tags": None},
    {"messages": None, "score": 1e300, "tags": []},
    {"messages": [{"role": "", "content": "\u00e9\U0001f600\n\"", "tool_calls": []}], "score": 2.0, "tags": [["y"]]},
]
FLAT = pa.schema([
    pa.field("id", pa.int64(), nullable=False), ("small", pa.uint8()), ("big", pa.uint64()), ("text", pa.string()),
    ("flag", pa.bool_()), ("single", pa.float32()), ("day", pa.date32()), ("time", pa.timestamp("us", tz="UTC"))])
FLAT_ROWS = [{"id": (-1) ** i * 3 ** i, "small": None if i % 5 == 0 else i, "big": 2 ** 64 - 1 - i, "text": "ab" * (i % 7) + str(i % 3),
              "flag": None if i % 4 == 0 else i % 3 == 0, "single": i / 4, "day": datetime.date(1600 + 13 * i, 2, 28 - i % 5),
              "time": datetime.datetime(1955 + i, 3, 1, 23, 59, i % 60, 5 * (i % 2), datetime.timezone.utc)} for i in range(40)]
FILES = {
    "chat_snappy": (CHAT, CHAT_ROWS * 3, {"compression": "snappy", "row_group_size": 5}),
    "chat_zstd_v2": (CHAT, CHAT_ROWS * 3, {"compression": "zstd", "data_page_version": "2.0", "use_dictionary": False}),
    "chat_legacy": (CHAT, CHAT_ROWS, {"compression": "none", "use_compliant_nested_type": False, "version": "1.0"}),
    "flat_gzip": (FLAT, FLAT_ROWS, {"compression": "gzip", "data_page_size": 64, "write_batch_size": 8, "write_page_checksum": True}),
    "flat_delta": (FLAT, FLAT_ROWS, {"compression": "none", "use_dictionary": False, "column_encoding": {
        "id": "DELTA_BINARY_PACKED", "text": "DELTA_BYTE_ARRAY", "single": "BYTE_STREAM_SPLIT", "flag": "RLE"}}),
    "flat_lengths": (FLAT, FLAT_ROWS, {"compression": "none", "data_page_version": "2.0", "use_dictionary": False, "column_encoding": {
        "id": "BYTE_STREAM_SPLIT", "text": "DELTA_LENGTH_BYTE_ARRAY"}}),
    "empty": (FLAT, [], {}),
}


def plain(x):
    if isinstance(x, (datetime.date, datetime.datetime)):
        return x.isoformat()
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items()}
    return [plain(v) for v in x] if isinstance(x, list) else x


def main():
    FOLDER.mkdir(exist_ok=True)
    for name, (schema, rows, options) in FILES.items():
        path = FOLDER / f"{name}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), path, **options)
        lines = [json.dumps(plain(r), ensure_ascii=False) for r in pq.read_table(path).to_pylist(maps_as_pydicts="strict")]
        path.with_suffix(".jsonl").write_text("".join(line + "\n" for line in lines))


main()
