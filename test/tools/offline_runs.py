#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads what ds_train keeps for W&B and Comet, with Python's own library alone:

    offline_runs.py wandb FILE.wandb     a JSON object: run, config, history, summary, exit code
    offline_runs.py comet FILE.zip       a JSON object: experiment, parameters, others, metrics

Every checksum, length and type is checked. The numbers of the fields are those of W&B's wandb_internal.proto.
"""
import json
import struct
import sys
import zipfile
import zlib

BLOCK = 32768


def records(data):
    assert data[:7] == b":W&B" + struct.pack("<HB", 0xBEE1, 0), data[:7]
    at, parts = 7, None
    while at < len(data):
        left = BLOCK - at % BLOCK
        if left < 7:
            assert data[at:at + left] == bytes(left)
            at += left
            continue
        crc, n, kind = struct.unpack_from("<IHB", data, at)
        body = data[at + 7:at + 7 + n]
        assert len(body) == n and 7 + n <= left, (at, n)
        assert zlib.crc32(bytes([kind]) + body) == crc, at
        assert (kind in (1, 2)) == (parts is None), (at, kind)
        parts = (parts or []) + [body]
        at += 7 + n
        if kind in (1, 4):
            yield b"".join(parts)
            parts = None
    assert parts is None


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def message(data):
    """Fields by number: a list of whole numbers or bytes each."""
    fields, at = {}, 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        else:
            assert key & 7 == 2, key
            n, at = varint(data, at)
            value, at = data[at:at + n], at + n
            assert len(value) == n
        fields.setdefault(key >> 3, []).append(value)
    return fields


def text(fields, number):
    assert len(fields.get(number, [])) <= 1
    return fields[number][0].decode() if number in fields else None


def items(fields):
    """{name: value} of the items of a config, a summary or a row."""
    found = {}
    for raw in fields.get(1, []):
        item = message(raw)
        name = text(item, 1) if 1 in item else "/".join(key.decode() for key in item[2]) if len(item[2]) > 1 else text(item, 2)
        assert name not in found, name
        found[name] = json.loads(text(item, 16))
    return found


def wandb(path):
    out = {"history": [], "summary": {}, "exit_code": None}
    for n, raw in enumerate(records(open(path, "rb").read()), 1):
        record = message(raw)
        assert record.pop(1) == [n], "numbers of records"
        info = message(record.pop(200)[0])
        ((kind, (raw,)),) = record.items()
        body = message(raw)
        if kind == 21:
            assert n == 1
            out["producer"] = text(message(body[1][0]), 1)
        elif kind == 17:
            out |= {"id": text(body, 1), "entity": text(body, 2), "project": text(body, 3), "group": text(body, 6), "name": text(body, 8),
                    "config": items(message(body[4][0])), "host": text(body, 13), "start": message(body[17][0])[1][0]}
        elif kind == 2:
            row = items(body)
            assert row["_step"] == message(body[2][0]).get(1, [0])[0]
            out["history"].append(row)
        elif kind == 3:
            out["summary"] |= items(body)
        elif kind == 18:
            assert out["exit_code"] is None
            out["exit_code"] = body.get(1, [0])[0]
        else:
            raise AssertionError(kind)
        assert text(info, 1) == out.get("id", text(info, 1))
    return out


def comet(path, ended=True):
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["experiment.json", "messages.json"]
        experiment = json.loads(archive.read("experiment.json"))
        lines = archive.read("messages.json").decode().splitlines()
    out = {"experiment": experiment, "parameters": {}, "others": {}, "metrics": []}
    for n, line in enumerate(lines, 1):
        one = json.loads(line)
        body = one["payload"]
        assert body["message_id"] == n and set(one) == {"type", "payload"}
        if one["type"] == "log_other":
            out["others"][body["key"]] = body["value"]
        elif one["type"] == "parameter_msg":
            out["parameters"][body["param"]["paramName"]] = body["param"]["paramValue"]
        else:
            assert one["type"] == "metric_msg", one
            metric = body["metric"]
            assert experiment["start_time"] <= body["local_timestamp"]
            assert not ended or body["local_timestamp"] <= experiment["stop_time"]
            out["metrics"].append([metric["metricName"], metric["metricValue"], metric["step"]])
    return out


if __name__ == "__main__":
    print(json.dumps({"wandb": wandb, "comet": comet}[sys.argv[1]](sys.argv[2])))
