#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the order of folders, by includes and by symbols. Usage: layers.py [BUILD]

Includes: a folder of src/ includes only from itself and from folders to its left; groups on one level
do not include one another. Public headers may be included by anybody, so that alone says little.

Symbols (nm of the objects in BUILD): what a folder uses is defined in itself or to its left, public
functions included; models/ stands among the folders. examples/ use public functions alone, models/ those and
src/model's, and nobody uses of models/ what is not public. tools/ and bench/ are the right end: they may use anything of src/.
A function of src/ that is not public has a user in another file. One whose only users are tests is used in its
own file too (then a test looks at a part), or it goes to the tests, or KEPT says why it stays.
"""
import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LEVELS = [
    ["base"], ["config", "ir", "comm", "io"], ["op"], ["accel", "grad", "optim", "nn"], ["place", "model"], ["models"],
    ["cost", "pass"], ["plan"], ["pipe"], ["exec"], ["ckpt", "data", "monitor"], ["compile"], ["report"], ["train"],
    ["infer"], ["guide", "serve"], ["launch"], ["tune"],
]
RANK = {folder: level for level, folders in enumerate(LEVELS) for folder in folders}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
TESTS = ("test", "ref", "examples")
ENTRIES = {"main", "dsi_wire_open", "dsi_mpi_peer_table", "dsi_tls_table", "ds_accel_v9"}  # of programs and loaded modules
# Only tests use these, and they stay. A name, or a folder with all in it.
KEPT = {
    "dsc_host_set_order": "the order of threads on the host layer, which is there for tests",
    "dsi_comm_sim_create": "N ranks in one process: the instrument of the determinism law",
    "dsi_rdv_barrier": "the rendezvous is a protocol of its own; jobs that have ranks compare over collectives",
    "dsi_rdv_digest": "likewise",
    "dsi_indexed_limit": "a test lowers a limit that no real file of a test reaches",
    "dsi_parquet_limit": "likewise",
    "dsi_gemm_pack": "B packed by the caller: for weights that do not change; generation packs nothing yet",
    "dsi_gemm_pack_bytes": "likewise",
    "dsi_exec_set_slot": "K slots of a program: those of today have one, a pipeline's have more",
    "dsi_mesh_is_block": "the condition of the determinism law for groups that reduce first",
    "dsi_flat_owner": "whole tensors dealt to owners, for matrix optimizers (docs/internals/place.md, flat)",
    "dsi_vocabulary_of": "a vocabulary without a tokenizer: for tests and fuzzers of guides",
    "dsi_guide_where_bytes": "a text without tokens: likewise",
    "dsi_mesh_parse": "every artifact prints and parses back: a mesh",
    "dsi_placement_parse": "likewise: a placement",
    "dsi_propagation_text": "likewise: what propagation found",
    "dsi_moves_text": "likewise: a redistribution",
}


def by_includes() -> list:
    bad = []
    names = {}
    for path in sorted(ROOT.glob("src/**/*.[ch]")):
        folder = path.relative_to(ROOT / "src").parts[0]
        if folder not in RANK:
            bad.append(f"{path.relative_to(ROOT)}: folder {folder} has no layer")
            continue
        for name in INCLUDE.findall(path.read_text()):
            other = name.split("/")[0]
            if "/" not in name or other == folder or other == "deepspeed":
                continue
            if other not in RANK or RANK[other] >= RANK[folder]:
                bad.append(f"{path.relative_to(ROOT)}: {folder} must not include {name}")
        if path.name in names and "cpu" not in path.parts:
            bad.append(f"{path.relative_to(ROOT)}: file name is not unique: {names[path.name]}")
        names[path.name] = path.relative_to(ROOT)
    for path in sorted([*ROOT.glob("models/*.[ch]"), *ROOT.glob("examples/**/*.[ch]")]):
        for name in INCLUDE.findall(path.read_text()):
            of_model = path.parent.name == "models" and name.startswith("model/")
            if not of_model and not (path.parent / name).exists():
                bad.append(f"{path.relative_to(ROOT)}: only public headers, not {name}")
    return bad


def read_objects(build: pathlib.Path):
    """Symbol → sources that define it, symbol → sources that use it."""
    sources = {}
    for path in build.glob("CMakeFiles/*.dir/**/*.o"):
        target, _, source = path.relative_to(build / "CMakeFiles").as_posix().partition(".dir/")
        if target != "ds_ref64" and (ROOT / source[:-2]).exists():  # ds_ref64: kernels again, for tests
            sources[str(path)] = source[:-2]
    if not any(source.startswith("src/") for source in sources.values()):
        sys.exit(f"layers.py: no objects in {build}; build first")
    defined, used = collections.defaultdict(set), collections.defaultdict(set)
    text = subprocess.run(["nm", "-A", "-P", "-g", *sources], check=True, capture_output=True, text=True).stdout
    for line in text.splitlines():
        path, symbol, kind = line.split()[:3]
        (used if kind in "Uvw" else defined)[symbol].add(sources[path[:-1]])
    return defined, used


def room(source: str) -> str:
    parts = source.split("/")
    return parts[1] if parts[0] == "src" else parts[0]


def uses_itself(source: str, symbol: str) -> bool:
    return len(re.findall(rf"\b{symbol}\b", (ROOT / source).read_text())) > 1


def by_symbols(build: pathlib.Path) -> list:
    defined, used = read_objects(build)
    headers = "\n".join(path.read_text() for path in sorted(ROOT.glob("include/**/*.h")))
    public = set(re.findall(r"\bds_\w+", headers))
    bad = []
    for symbol, sources in sorted(defined.items()):
        sources = {source for source in sources if room(source) in RANK}
        if not sources:
            continue
        source = min(sources)
        users = used.get(symbol, set()) - sources
        to, is_public = room(source), symbol in public
        for user in sorted(users):
            at = room(user)
            if at != to and at in RANK and RANK[to] >= RANK[at]:
                bad.append(f"{user}: {at} must not use {symbol} of {source}")
            elif at != to and not is_public and ("models" in (at, to) or at == "examples") and (at, to) != ("models", "model"):
                bad.append(f"{user}: uses {symbol} of {source}, which is not public")
        template = "/simd/" in source  # compiled for each instruction set
        if is_public or template or symbol in ENTRIES or symbol in KEPT or f"src/{to}" in KEPT:
            continue
        if not users:
            bad.append(f"{source}: {symbol}: no other file uses it: make it static, or delete it")
        elif all(room(user) in TESTS for user in users) and not uses_itself(source, symbol):
            bad.append(f"{source}: {symbol}: only tests use it: move it to test/, or delete it")
    return bad


def main() -> int:
    bad = by_includes()
    if len(sys.argv) > 1:
        bad += by_symbols(pathlib.Path(sys.argv[1]).resolve())
    print("\n".join(bad) if bad else "layers hold")
    return 1 if bad else 0


sys.exit(main())
