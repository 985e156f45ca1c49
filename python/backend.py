# SPDX-License-Identifier: Apache-2.0
"""Builds the package for pip (PEP 517) with the standard library alone: it needs no network and no other package.

The wheel is pure Python: the files of deepspeed_native/, and _abi.py made of the headers beside this folder.
"""
from __future__ import annotations

import base64
import hashlib
import pathlib
import tarfile
import zipfile

from headers import Headers

HERE = pathlib.Path(__file__).resolve().parent
INCLUDE = HERE.parent / "include" / "deepspeed"
NAME = "deepspeed_native"


def _headers() -> Headers:
    folder = INCLUDE if INCLUDE.is_dir() else HERE / "include" / "deepspeed"  # the second: of a source archive
    if not folder.is_dir():
        raise RuntimeError(f"the library's headers are not at {INCLUDE}: install from the project's tree")
    return Headers(folder)


def _metadata(version: str) -> str:
    return (f"Metadata-Version: 2.1\nName: deepspeed-native\nVersion: {version}\nRequires-Python: >=3.9\n"
            "License: Apache-2.0\nSummary: Train and serve large language models: the C library libdeepspeed from Python\n")


def _files() -> tuple[str, dict[str, bytes]]:
    """The version, and what the wheel holds."""
    headers = _headers()
    version = headers.version()[0]
    files = {f"{NAME}/{p.name}": p.read_bytes() for p in sorted((HERE / NAME).iterdir())
             if p.suffix == ".py" or p.name == "py.typed"}
    files[f"{NAME}/_abi.py"] = headers.module().encode()
    info = f"{NAME}-{version}.dist-info"
    files[f"{info}/METADATA"] = _metadata(version).encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: backend.py\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    for name in ("LICENSE", "NOTICE"):
        if (HERE.parent / name).is_file():
            files[f"{info}/{name}"] = (HERE.parent / name).read_bytes()
    return version, files


def build_wheel(wheel_directory: str, config_settings=None, metadata_directory=None) -> str:
    version, files = _files()
    record = ""
    wheel = f"{NAME}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(wheel_directory) / wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record += f"{name},sha256={digest},{len(data)}\n"
            archive.writestr(name, data)
        path = f"{NAME}-{version}.dist-info/RECORD"
        archive.writestr(path, f"{record}{path},,\n")
    return wheel


def build_sdist(sdist_directory: str, config_settings=None) -> str:
    version = _headers().version()[0]
    root = f"deepspeed_native-{version}"
    with tarfile.open(pathlib.Path(sdist_directory) / f"{root}.tar.gz", "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for name in ("pyproject.toml", "backend.py", "headers.py", NAME):
            archive.add(HERE / name, f"{root}/{name}", filter=lambda f: None if "__pycache__" in f.name else f)
        archive.add(INCLUDE, f"{root}/include/deepspeed")
        metadata = pathlib.Path(sdist_directory) / "PKG-INFO"
        metadata.write_text(_metadata(version))
        archive.add(metadata, f"{root}/PKG-INFO")
        metadata.unlink()
    return f"{root}.tar.gz"
