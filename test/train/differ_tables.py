# SPDX-License-Identifier: Apache-2.0
"""What a rank of a job, or a run that is resumed, can differ in, from the program's own tables.

flags(build)      rows of ds_train --help, with who may have them otherwise
keys(build)       keys of the DeepSpeed configuration, from ds_config schema
fields(source)    keys of config.json that a class reads, from the rows in models/*.c
variables(source) of the environment, from tools/common/environment.c

Each row makes a value that is not the one given. Imported by ranks_differ.py and resume_differs.py; no package needed.
"""
import json
import re
import subprocess


class Flag:
    """name with dashes; word of its value ("" for a switch); may: {"ranks": …, "resume": …} of same, content, noticed, free."""

    def __init__(self, line, doc, heading):
        found = re.match(r"--(\w+)(?: ([^ \[(]\S*|\[[\w|]+\]))?(?:  \(([^)]*)\))?(?:  \[(.*)\])?$", line)
        self.name, self.word, choices, self.default = "--" + found[1], found[2] or "", found[3], found[4]
        self.choices = (choices or (self.word if "|" in self.word and self.word.islower() else "")).split("|")
        text = " ".join(doc)
        self.trainer = heading.startswith("Values of the configuration")
        self.keys = re.findall(r"[a-z_0-9]+(?:\.[a-z_0-9]+)*", text.split(";")[0].split(",")[0])
        self.may = {"ranks": "content" if "Ranks may have a copy." in text else "free" if "Ranks may differ." in text else "same",
                    "resume": "content" if "At --resume its content counts." in text else "noticed" if "May change at --resume: a notice." in text
                    else "free" if "May change at --resume." in text else "same"}

    def words(self, rng, given=None):
        """The flag with another value than `given`: a list of words. None where it names files, which the caller makes."""
        if self.may["ranks"] == "content":
            return None
        if self.word == "":
            return [self.name, "false"] if self.default == "true" else [self.name]
        if self.choices != [""]:
            return [self.name, rng.choice([c for c in self.choices if c not in (given, self.default)])]
        if self.name == "--accelerator":  # null computes nothing
            return [self.name, rng.choice([a for a in ("cpu", "sim", "sim:seed=3") if a != given])]
        kinds = {"N": lambda: str(rng.randrange(1, 9)), "T": lambda: str(rng.choice([8, 16, 24, 40])),
                 "X": lambda: rng.choice(["0.5", "0.25", "0.125"]), "F": lambda: rng.choice(["0.25", "0.3", "0.5"]),
                 "A:B": lambda: rng.choice(["1", "1:2"]), "TEXT": lambda: rng.choice(["Once", "a b"]), "NAME": lambda: rng.choice(["chatml", "cosine", "adamw_torch"]),
                 "PATTERN…": lambda: rng.choice(["*norm*", "*.0.*"]), "[TAG|FOLDER]": lambda: rng.choice(["", "global_step1"]),
                 "DIR": lambda: "other_out", "FIELD=COLUMN,…": lambda: "text=content", "JSON": lambda: "{}"}
        kind = kinds.get(self.word, lambda: "f" + self.word.removeprefix("FILE") if self.word.startswith("FILE") else "x")
        while True:
            value = kind()
            if value not in (given, self.default):
                return [self.name, value] if value else [self.name]


def flags(build):
    text = subprocess.run([f"{build}/ds_train", "--help"], capture_output=True, text=True, check=True).stdout
    rows, heading, before = [], "", "\n"
    for block in re.split(r"\n(?=  --|\S)", text):
        lines = block.rstrip().split("\n")
        if lines[0].startswith("  --"):
            rows.append(Flag(lines[0].strip(), [line.strip() for line in lines[1:]], heading))
        elif before.endswith("\n"):  # behind an empty line; else a heading goes on
            heading = lines[0]
        before = block
    assert len(rows) > 40 and {"--steps", "--data", "--metrics"} <= {r.name for r in rows}, "ds_train --help has another form"
    return rows


def leaves(schema):
    """The alternatives of a value that are no sections."""
    if "anyOf" in schema:
        return [leaf for one in schema["anyOf"] for leaf in leaves(one)]
    return [schema] if schema.get("type") != "object" and schema.get("const") != "auto" and schema.get("type") != "null" else []


def sections(schema):
    return [one for part in schema.get("anyOf", []) for one in sections(part)] + ([schema] if schema.get("type") == "object" else [])


class Key:
    def __init__(self, path, schema):
        self.path, self.default, self.leaves = path, schema.get("default"), leaves(schema)

    def value(self, rng, given=None):
        """Another value than `given` and the default; None: there is none."""
        for _ in range(20):
            value = leaf_value(rng, rng.choice(self.leaves), self.default)
            if value is not None and value not in (given, self.default):
                return value
        return None


def leaf_value(rng, leaf, default):
    kind = leaf.get("type")
    if "enum" in leaf:
        return rng.choice(leaf["enum"])
    if kind == "boolean":
        return rng.random() < 0.5
    if kind in ("integer", "number"):
        base = default if isinstance(default, (int, float)) and not isinstance(default, bool) else leaf.get("minimum", 1)
        value = rng.choice([base + 1, base + 2, base * 2] + ([base * 1.5, base + 0.5] if kind == "number" else []))
        return min(max(int(value) if kind == "integer" else float(value), leaf.get("minimum", 0)), leaf.get("maximum", 1e15))
    if kind == "array":
        each = leaf.get("items", {})
        many = 2 if not isinstance(default, list) else max(len(default), 1)
        return [leaf_value(rng, each, 0.5 if each.get("maximum") == 1 else None) for _ in range(many)]
    return rng.choice(["x", "fp16", "bf16"]) if kind == "string" else rng.choice([1, "x", True])


def keys(build):
    schema = json.loads(subprocess.run([f"{build}/ds_config", "schema"], capture_output=True, text=True, check=True).stdout)
    rows = {}

    def walk(section, path):
        for name, one in section.get("properties", {}).items():
            key = Key(path + name, one)
            if key.leaves:
                rows.setdefault(key.path, key)
            for below in sections(one):
                walk(below, f"{path}{name}.")

    walk(schema, "")
    assert len(rows) > 300, "ds_config schema has another form"
    return list(rows.values())


def with_key(config, path, value):
    """A copy of a configuration with one key set."""
    config = json.loads(json.dumps(config))
    at = config
    *above, last = path.split(".")
    for name in above:
        at[name] = at[name] if isinstance(at.get(name), dict) else {}
        at = at[name]
    at[last] = value
    return config


def resolved_otherwise(build, one, other):
    """The keys whose values differ in two files, under the names that they are known by: what an alias stands for."""
    texts = [subprocess.run([f"{build}/ds_config", "resolve", path], capture_output=True, text=True, check=False).stdout for path in (one, other)]
    if not all(texts):
        return []
    a, b = (json.loads(text) for text in texts)
    return sorted(key for key in b if a.get(key, {}).get("value") != b[key]["value"])


class Field:
    """applied: stored and printed by ds_model_print; else checked or refused."""

    def __init__(self, key, applied, types):
        self.key, self.applied, self.types = key, applied, types

    def value(self, rng, given):
        while True:
            kind = rng.choice(self.types)
            value = {"bool": lambda: rng.random() < 0.5, "int": lambda: rng.choice([1, 2, 3, 4, 8, 16, 48]),
                     "real": lambda: rng.choice([1e-6, 0.125, 0.5, 3.5, 25000.0]), "text": lambda: rng.choice(["gelu", "relu", "x"]),
                     "null": lambda: None, "list": lambda: [1], "object": lambda: {"rope_type": "linear", "factor": rng.choice([2.0, 3.0])}}[kind]()
            if value != given or type(value) is not type(given):
                return value


TYPES = {"SIZE": ["int"], "SIZE_OR_NULL": ["int", "null"], "ANY_INT": ["int", "null"], "SWITCH": ["bool"], "REAL": ["real"],
         "DROPOUT": ["int", "real"]}


def fields(source, model_type="llama"):
    """The rows of one class, those of all classes, and what is read outside of tables."""
    rows = {}
    own = ["models/gpt2_config.c"] if model_type == "gpt2" else ["models/decoder.h", "models/llama.c"]
    for name in (*own, "src/model/common_fields.c"):
        text = (source / name).read_text().replace("DS_DECODER_", "")
        for body in re.findall(r"#define (?:SHARED|COMMON|PAD)\(.*?\n(?=\n|#)", text, re.S) + re.findall(r"ds_field (?:%s_fields|fields|common|rows)\[\] = \{.*?\n\};"
                                                                                % model_type, text, re.S):
            for macro, key, rest in re.findall(r"(\w+)\(\"(\w+)\"([^;]*?)(?=\),|\)\s*$)", body):
                seen = [t for t, word in (("bool", "_BOOL"), ("int", "_INT"), ("real", "_REAL"), ("int", "_NUMBER"), ("real", "_NUMBER"),
                                          ("text", "_TEXT"), ("null", "_NULL"), ("object", "_OBJECT")) if word in rest]
                rows[key] = Field(key, not macro.startswith("DS_FIELD_"), TYPES.get(macro) or seen or ["int", "text", "bool"])
    for key, types in (("rope_theta", ["real", "int"]), ("rope_scaling", ["object"]), ("rope_parameters", ["object"]), ("hidden_act", ["text"]),
                       ("torch_dtype", ["text"]), ("model_type", ["text"])):
        rows.setdefault(key, Field(key, True, types))
    assert len(rows) > 25 and sum(row.applied for row in rows.values()) > 10, "the rows of models/*.c have another form"
    return list(rows.values())


class Variable:
    def __init__(self, name, row):
        self.name = name
        self.ranks = re.search(r"\.ranks = (\w+)", row)[1]
        words = re.search(r"\.words = \"([^\"]*)\"", row)
        self.values = words[1].split("|") if words else ["/tmp"] if ".folder" in row else ["2", "3"] if ".max" in row else ["ref"]


def variables(source):
    text = (source / "tools/common/environment.c").read_text()
    rows = [Variable(n, r) for n, r in re.findall(r"\{\.name = \"(\w+)\",(.*?)\},?\s", text[text.index("variables[] = {"):], re.S)]
    assert len(rows) > 6, "tools/common/environment.c has another form"
    return rows
