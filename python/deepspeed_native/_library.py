# SPDX-License-Identifier: Apache-2.0
"""Finds libdeepspeed, types its functions by _abi.py, and turns statuses into exceptions."""
from __future__ import annotations

import ctypes
import ctypes.util
import logging
import os
import pathlib
from typing import Any, Optional

from . import _abi
from .errors import DeepSpeedError, error_of

VARIABLE = "DEEPSPEED_NATIVE_LIBRARY"
log = logging.getLogger("deepspeed_native")
_LEVELS = [logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG, logging.DEBUG, logging.DEBUG]
_LOG_FN = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
BATCH_FN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


def _candidates() -> list[str]:
    """Where the library may be, in order: the variable alone where it is set, the package's folder, the system."""
    if os.environ.get(VARIABLE):
        return [os.environ[VARIABLE]]
    own = sorted(str(p) for p in pathlib.Path(__file__).parent.glob("libdeepspeed.so*"))
    return [*own[:1], "libdeepspeed.so.0", ctypes.util.find_library("deepspeed") or "libdeepspeed.so"]


def _open() -> ctypes.CDLL:
    tried = []
    for path in _candidates():
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            tried.append(f"{path}: {error}")
    raise ImportError("libdeepspeed is not found; install it (cmake --install), or set "
                      f"{VARIABLE} to the path of libdeepspeed.so. Tried: " + "; ".join(tried))


class _Whole:
    """The type of a whole number that a function takes: as the fields of structs, held to its range."""

    def __init__(self, kind: Any, function: str) -> None:
        self.kind, self.name = kind, f"an argument of {function}"

    def from_param(self, value: Any) -> Any:
        if isinstance(value, int):
            _abi.check_whole(self.kind, self.name, value)
        return self.kind.from_param(value)


def _load() -> ctypes.CDLL:
    library = _open()
    if not hasattr(library, "ds_version"):
        raise ImportError(f"{library._name} is no libdeepspeed: it has no ds_version")
    library.ds_version.restype = ctypes.c_uint32
    found = library.ds_version()
    if found // 100 != _abi.VERSION // 100:  # while the shared object's version is 0, minor versions differ
        raise ImportError(f"libdeepspeed has the version {found // 10000}.{found // 100 % 100}.{found % 100}, this package "
                          f"is made for {_abi.VERSION_TEXT}: install the two of one release")
    for name, (result, parameters) in _abi.FUNCTIONS.items():
        function = getattr(library, name, None)
        if function is None:
            raise ImportError(f"libdeepspeed has no {name}: it is another build of {_abi.VERSION_TEXT} than this package")
        function.restype = result
        function.argtypes = [_Whole(kind, name) if kind in _abi.RANGES else kind for kind in parameters]
    return library


C = _load()


def encoded(text: Optional[Any]) -> Optional[bytes]:
    """A text or path for the library; None stays None."""
    return None if text is None else os.fsencode(text)


def id_array(ids: Any) -> Any:
    """Token ids for the library. ctypes alone would keep the low bits of a number that is no id."""
    for token in ids:
        _abi.check_whole(ctypes.c_uint32, "a token id", token)
    return (ctypes.c_uint32 * len(ids))(*ids)


class Context:
    """Error record, log and threads. Log lines go to the logger "deepspeed_native". One thread at a time uses a context."""

    def __init__(self, threads: int = 0) -> None:
        params = C.ds_ctx_params_default()
        self._log = _LOG_FN(self._log_line)  # kept: the library calls it
        params.log = ctypes.cast(self._log, ctypes.c_void_p).value
        params.n_threads = threads
        self.data_ranks: Optional[tuple[int, int]] = None  # (rank, ranks) that differ in their samples, of its newest engine
        self.pointer = ctypes.c_void_p()
        if C.ds_ctx_create(ctypes.byref(params), ctypes.byref(self.pointer)) < 0:
            raise DeepSpeedError("no memory for a context", "ERR_NOMEM")

    @staticmethod
    def _log_line(_user: Any, level: int, line: bytes) -> None:
        log.log(_LEVELS[level], "%s", line.decode(errors="replace"))

    def check(self, status: int) -> None:
        """Raises what the library says of a status that is an error."""
        if status < 0:
            raise error_of(status, C.ds_ctx_error(self.pointer).decode(errors="replace"),
                           C.ds_ctx_error_place(self.pointer).decode(errors="replace"))


_shared: Optional[Context] = None


def shared_context() -> Context:
    """The context of all objects that are not given one."""
    global _shared
    if _shared is None:
        _shared = Context()
    return _shared


_free = ctypes.CDLL(None).free
_free.argtypes, _free.restype = [ctypes.c_void_p], None


def take_bytes(pointer: ctypes.c_void_p, size: Optional[int] = None) -> bytes:
    """The text that the library gave away, freed."""
    data = ctypes.string_at(pointer) if size is None else ctypes.string_at(pointer, size)
    _free(pointer)
    return data


def take_text(pointer: ctypes.c_void_p) -> str:
    return take_bytes(pointer).decode(errors="replace")


def hub_folder(context: Context, name: Any, revision: Optional[str], needs: int) -> str:
    """The folder that a model's name stands for in the Hugging Face cache; a path stays as it is."""
    out = ctypes.c_void_p()
    context.check(C.ds_hub_find(context.pointer, encoded(name), encoded(revision), needs, ctypes.byref(out)))
    return take_text(out)


class Owned:
    """An object of the library with a destroy function; the objects that it needs are kept alive."""

    _destroy = ""

    def __init__(self, context: Optional[Context], *needs: Any) -> None:
        self.context = context or shared_context()
        self._needs = needs
        self._pointer = ctypes.c_void_p()

    @property
    def pointer(self) -> ctypes.c_void_p:
        if not self._pointer:
            raise error_of(-2, f"this {type(self).__name__} is closed", "")
        return self._pointer

    def close(self) -> None:
        """Frees it now; a second time does nothing."""
        if self._pointer:
            getattr(C, self._destroy)(ctypes.byref(self._pointer))
            self._pointer = ctypes.c_void_p()
        self._needs = ()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_pointer", None) and C is not None:
            self.close()
