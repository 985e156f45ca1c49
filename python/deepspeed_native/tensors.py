# SPDX-License-Identifier: Apache-2.0
"""Tensors in and out without copies: the buffer protocol, numpy's array interface, DLPack.

In: whatever has a buffer (numpy, array.array, bytes, memoryview) or __dlpack__ (torch, jax) on the processor, contiguous;
lists of numbers are copied. Out: `Tensor`, a view of memory of the library.
"""
from __future__ import annotations

import array
import ctypes
from typing import Any, Optional, Sequence, Union

from . import _abi
from .errors import ArgumentError, ShapeError

# The library's name, a letter of struct, an array interface's type, DLPack's code and bits.
_KINDS = [("f32", "f", "<f4", 2, 32), ("bf16", "", "", 4, 16), ("f16", "e", "<f2", 2, 16), ("f64", "d", "<f8", 2, 64),
          ("i8", "b", "|i1", 0, 8), ("u8", "B", "|u1", 1, 8), ("i32", "i", "<i4", 0, 32), ("i64", "q", "<i8", 0, 64),
          ("bool", "?", "|b1", 6, 8)]
_ENUM = {name: _abi.ENUMS["ds_dtype"]["DS_DTYPE_" + name.upper()] for name, *_ in _KINDS}
_NAME = {value: name for name, value in _ENUM.items()}
_BYTES = {name: bits // 8 for name, _, _, _, bits in _KINDS}
_LETTER = {letter: name for name, letter, *_ in _KINDS if letter} | {"l": "i64"}


class _DLDevice(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", _DLDevice), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class _DLManaged(ctypes.Structure):
    pass


_DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(_DLManaged))
_DLManaged._fields_ = [("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", _DELETER)]
_CAPSULE_END = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_api = ctypes.PyDLL(None)  # one of our own: others set argtypes of ctypes.pythonapi
_api.PyCapsule_New.argtypes, _api.PyCapsule_New.restype = [ctypes.c_void_p, ctypes.c_char_p, _CAPSULE_END], ctypes.py_object
_api.PyCapsule_IsValid.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_api.PyCapsule_GetPointer.argtypes, _api.PyCapsule_GetPointer.restype = [ctypes.c_void_p, ctypes.c_char_p], ctypes.c_void_p
_living: dict[int, Any] = {}  # what DLPack's consumers still use


def _of(dtype: str, shape: Sequence[int], address: int) -> _abi.ds_tensor:
    if len(shape) > _abi.ds_shape.dims.size // 8:
        raise ShapeError(f"a tensor has at most {_abi.ds_shape.dims.size // 8} dimensions, found {len(shape)}", "ERR_SHAPE")
    out = _abi.ds_tensor(data=address)
    out.meta.dtype = _ENUM[dtype]
    out.meta.shape.n_dims = len(shape)
    for i, n in enumerate(shape):
        out.meta.shape.dims[i] = n
    return out


def _from_buffer(view: memoryview) -> tuple[_abi.ds_tensor, Any]:
    letter = view.format.lstrip("<=@") if view.format else ""
    if letter not in _LETTER:
        raise ShapeError(f"elements of the format {view.format!r} are not known", "ERR_SHAPE")
    if not view.c_contiguous:
        raise ShapeError("a tensor must be contiguous", "ERR_SHAPE")
    flat = view.cast("B") if view.nbytes else view
    if view.readonly:
        kept = ctypes.create_string_buffer(bytes(flat), view.nbytes + 1)  # ctypes gives no address of what is read-only
        return _of(_LETTER[letter], view.shape or (), ctypes.addressof(kept)), kept
    kept = (ctypes.c_char * view.nbytes).from_buffer(flat) if view.nbytes else ctypes.create_string_buffer(1)
    return _of(_LETTER[letter], view.shape or (), ctypes.addressof(kept)), (kept, view)


def _from_dlpack(source: Any) -> tuple[_abi.ds_tensor, Any]:
    capsule = source.__dlpack__()
    managed = _DLManaged.from_address(_api.PyCapsule_GetPointer(id(capsule), b"dltensor"))
    t = managed.tensor
    kinds = [name for name, _, _, code, bits in _KINDS if (code, bits) == (t.code, t.bits)]
    if t.device.type != 1:
        raise ArgumentError("the tensor is on another device than the processor: move it there first")
    if not kinds or t.lanes != 1:
        raise ShapeError(f"elements of DLPack's code {t.code} with {t.bits} bits are not known", "ERR_SHAPE")
    shape = [t.shape[i] for i in range(t.ndim)]
    step = 1
    for i in reversed(range(t.ndim)):
        if t.strides and shape[i] > 1 and t.strides[i] != step:
            raise ShapeError("a tensor must be contiguous: call .contiguous() first", "ERR_SHAPE")
        step *= shape[i]
    return _of(kinds[0], shape, (t.data or 0) + t.byte_offset), capsule


def _from_list(values: Any, dtype: str) -> tuple[_abi.ds_tensor, Any]:
    shape = []
    flat = [values]
    while flat and isinstance(flat[0], (list, tuple)):
        shape.append(len(flat[0]))
        if any(not isinstance(row, (list, tuple)) or len(row) != shape[-1] for row in flat):
            raise ShapeError("the rows of a nested list have different lengths", "ERR_SHAPE")
        flat = [x for row in flat for x in row]
    letter = next(letter for name, letter, *_ in _KINDS if name == dtype)
    try:
        data = array.array(letter, flat)
    except (TypeError, OverflowError) as error:
        raise ArgumentError(f"a value is no {dtype}: {error}") from None
    kept = memoryview(data) if data else memoryview(array.array(letter, [0]))
    return _of(dtype, shape, data.buffer_info()[0]), kept


def borrow(source: Any, dtype: str) -> tuple[_abi.ds_tensor, Any]:
    """A view of source, and what must live as long as it is used. dtype: what lists become, and 64-bit integers where it
    is i32 (ids of tokenizers, labels): those are copied."""
    if isinstance(source, Tensor):
        tensor, kept = _of(source.dtype, source.shape, source._address), source
        return _narrow(tensor, kept) if dtype == "i32" and source.dtype == "i64" else (tensor, kept)
    if isinstance(source, (list, tuple, int, float)):
        return _from_list(list(source) if isinstance(source, tuple) else source, dtype)
    try:
        view = memoryview(source)
    except TypeError:
        if not hasattr(source, "__dlpack__"):
            raise ArgumentError(f"a {type(source).__name__} is no tensor: expected a list, a buffer or DLPack") from None
        tensor, kept = _from_dlpack(source)
    else:
        tensor, kept = _from_buffer(view)
    if dtype == "i32" and tensor.meta.dtype == _ENUM["i64"]:
        return _narrow(tensor, kept)
    return tensor, kept


def _narrow(tensor: _abi.ds_tensor, kept: Any) -> tuple[_abi.ds_tensor, Any]:
    shape = [tensor.meta.shape.dims[i] for i in range(tensor.meta.shape.n_dims)]
    n = 1
    for length in shape:
        n *= length
    wide = (ctypes.c_int64 * n).from_address(tensor.data) if n else ()
    try:
        data = array.array("i", wide)
    except OverflowError:
        raise ArgumentError("a value is beyond 32 bits") from None
    del kept
    return _of("i32", shape, data.buffer_info()[0]), data


class Tensor:
    """Memory of the library, or of Python's, as an array. numpy.asarray(t) and torch.from_dlpack(t) do not copy.

    `dtype` is "f32", "bf16" … A view of an engine's output is valid until the engine's next call that runs something.
    """

    def __init__(self, dtype: str, shape: Sequence[int], address: int, keep: Any) -> None:
        self.dtype, self.shape = dtype, tuple(shape)
        self._address, self._keep = address, keep

    @classmethod
    def _view(cls, tensor: _abi.ds_tensor, keep: Any) -> "Tensor":
        shape = tensor.meta.shape
        return cls(_NAME[tensor.meta.dtype], [shape.dims[i] for i in range(shape.n_dims)], tensor.data, keep)

    @classmethod
    def empty(cls, shape: Sequence[int], dtype: str = "f32") -> "Tensor":
        """Zeros of Python's own memory."""
        n = _BYTES[dtype]
        for length in shape:
            n *= length
        memory = ctypes.create_string_buffer(max(n, 1))
        return cls(dtype, shape, ctypes.addressof(memory), memory)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a scalar has no length")
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        n = _BYTES[self.dtype]
        for length in self.shape:
            n *= length
        return n

    def memoryview(self) -> memoryview:
        """A writable view with the tensor's shape; bf16 as raw bytes in its last dimension."""
        raw = (ctypes.c_char * self.nbytes).from_address(self._address)
        raw._keep = self._keep  # type: ignore[attr-defined]
        letter = next(letter for name, letter, *_ in _KINDS if name == self.dtype)
        flat = memoryview(raw).cast("B")
        if not letter or not self.nbytes:
            return flat
        return flat.cast(letter, list(self.shape)) if self.shape else flat.cast(letter)

    def __buffer__(self, _flags: int) -> memoryview:  # the buffer protocol, from Python 3.12 on
        return self.memoryview()

    def tolist(self) -> Any:
        """Nested lists of Python numbers."""
        if self.dtype == "bf16":
            bits = (ctypes.c_uint16 * (self.nbytes // 2)).from_address(self._address)
            wide = (ctypes.c_uint32 * len(bits))(*(b << 16 for b in bits))
            return memoryview(wide).cast("B").cast("f", list(self.shape) or [1]).tolist()
        values = self.memoryview().tolist()
        return values if self.shape else values[0]

    @property
    def __array_interface__(self) -> dict[str, Any]:
        kind = next(kind for name, _, kind, *_ in _KINDS if name == self.dtype)
        if not kind:
            raise AttributeError("numpy has no bf16; use torch.from_dlpack or tolist()")
        return {"version": 3, "shape": self.shape, "typestr": kind, "data": (self._address, False)}

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **_: Any) -> Any:
        code, bits = next((code, bits) for name, _l, _a, code, bits in _KINDS if name == self.dtype)
        shape = (ctypes.c_int64 * max(len(self.shape), 1))(*self.shape)
        managed = _DLManaged()
        managed.tensor = _DLTensor(self._address, _DLDevice(1, 0), len(self.shape), code, bits, 1,
                                   ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64)), None, 0)
        managed.deleter = _forget
        address = ctypes.addressof(managed)
        _living[address] = (managed, shape, self)
        return _api.PyCapsule_New(address, b"dltensor", _unused)


@_DELETER
def _forget(managed: Any) -> None:
    _living.pop(ctypes.addressof(managed.contents), None)


@_CAPSULE_END
def _unused(capsule: int) -> None:
    """A capsule that nobody took goes, and its tensor with it."""
    if _api.PyCapsule_IsValid(capsule, b"dltensor"):
        _living.pop(_api.PyCapsule_GetPointer(capsule, b"dltensor"), None)


TensorLike = Union[Tensor, Sequence[Any], Any]
