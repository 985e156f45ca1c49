# SPDX-License-Identifier: Apache-2.0
"""The engine: forward, backward, step, evaluation, files, generation."""
from __future__ import annotations

import array
import ctypes
import json
import os
from typing import Any, Iterable, Iterator, Mapping, Optional, Sequence, Union

from . import _abi
from ._library import BATCH_FN, C, Context, Owned, encoded, log, shared_context, take_text
from .config import Config, ConfigLike
from .errors import ArgumentError, DeepSpeedError
from .generation import Generator
from .model import Model, ModelLike
from .tensors import Tensor, TensorLike, borrow
from .text import Tokenizer

Path = Union[str, "os.PathLike[str]"]
_IGNORED = -100  # a target that is not counted


def initialize(model: ModelLike, config: ConfigLike, seq_length: int, *, weights: Optional[Path] = None, seed: int = 0,
               frozen: Sequence[str] = (), trainer: Optional[Mapping[str, Any]] = None, tokenizer: Optional[Tokenizer] = None,
               context: Optional[Context] = None) -> "Engine":
    """An engine for a model and a DeepSpeed configuration.

    model: a folder (its weights are read, unless `weights` names others), a config.json, or a dict of it. config: a dict, a
    text, a path, or a Config. trainer: what "auto" stands for, {"micro_batch": 4, "learning_rate": 2e-5}. Ranks are those
    of the launcher's environment, one without.
    """
    context = context or shared_context()
    model = model if isinstance(model, Model) else Model(model, context)
    config = config if isinstance(config, Config) else Config(config, context)
    return Engine(model, config, seq_length, weights, seed, frozen, trainer or {}, tokenizer, context)


class _Comm(Owned):
    """The ranks of this job."""

    _destroy = "ds_comm_close"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        context.check(C.ds_comm_open(context.pointer, ctypes.byref(self._pointer)))


class Engine(Owned):
    """Made by initialize(). Calls are those of DeepSpeed's engine; one thread at a time."""

    _destroy = "ds_engine_destroy"

    def __init__(self, model: Model, config: Config, seq_length: int, weights: Optional[Path], seed: int, frozen: Sequence[str],
                 trainer: Mapping[str, Any], tokenizer: Optional[Tokenizer], context: Context) -> None:
        self._generator: Optional[Generator] = None
        self._comm = _Comm(context)
        super().__init__(context, model, self._comm)
        self.model, self.config, self.tokenizer, self.seq_length = model, config, tokenizer, seq_length
        self.rank = C.ds_comm_rank(self._comm.pointer)
        self.world_size = C.ds_comm_size(self._comm.pointer)
        hidden = model.info.hidden_size
        config.resolve(self.world_size, **({"hidden_size": hidden} if hidden > 0 else {}), **trainer)
        for notice in config.notices:
            log.warning("%s", notice)
        patterns = (ctypes.c_char_p * len(frozen))(*(p.encode() for p in frozen))
        params = _abi.ds_engine_params(
            model=model.pointer, config=config.pointer, seq_length=seq_length, seed=seed,
            weights=encoded(weights if weights is not None else model.weights),
            frozen=ctypes.addressof(patterns) if frozen else None, n_frozen=len(frozen), comm=self._comm.pointer)
        context.check(C.ds_initialize(context.pointer, ctypes.byref(params), ctypes.byref(self._pointer)))
        data = C.ds_engine_data_comm(self.pointer)  # what a Loader is given
        self.dp_rank, self.dp_world_size = C.ds_comm_rank(data), C.ds_comm_size(data)
        context.data_ranks = (self.dp_rank, self.dp_world_size)

    def close(self) -> None:
        if getattr(self, "_generator", None) is not None:
            self._generator.close()
            self._generator = None
        super().close()

    # ---- batches

    def _tensors(self, given: Mapping[str, TensorLike]) -> tuple[_abi.ds_batch, Any]:
        """Named tensors as a batch, and what must live as long. What a language model needs beside input_ids is made."""
        kept: list[Any] = []
        named: dict[str, _abi.ds_tensor] = {}
        for name, source in given.items():
            if source is not None:
                try:
                    named[name], keep = borrow(source, "i32")
                except DeepSpeedError as error:
                    raise type(error)(f"{name}: {error}", error.status) from None
                kept.append((source, keep))
        if "labels" in named:
            kept.append(_shift(named))
        if "input_ids" in named:
            kept.append(_complete(named))
        tensors = (_abi.ds_named_tensor * len(named))()
        for slot, (name, tensor) in zip(tensors, named.items()):
            slot.name, slot.tensor = name.encode(), tensor
        kept.append(tensors)
        return _abi.ds_batch(tensors=ctypes.addressof(tensors), n_tensors=len(named)), kept

    def forward(self, **tensors: TensorLike) -> float:
        """The loss of one micro-batch: input_ids (B,T) with targets, or with labels as Hugging Face's models take them
        (shifted here); positions and document masks ("first") where they are not usual. A custom model's inputs by name."""
        batch, kept = self._tensors(tensors)
        self.context.check(C.ds_engine_forward(self.pointer, ctypes.byref(batch)))
        del kept
        return self.loss

    __call__ = forward

    def backward(self, loss: Optional[float] = None) -> None:
        """Adds the gradients of the newest forward; the loss is the engine's own."""
        del loss
        self.context.check(C.ds_engine_backward(self.pointer))

    def step(self) -> None:
        """Updates at the accumulation boundary, elsewhere only counts."""
        self.context.check(C.ds_engine_step(self.pointer))

    def train_batch(self, batches: Union[Iterator[Mapping[str, TensorLike]], Iterable[Mapping[str, TensorLike]]]) -> float:
        """Forward, backward and step over a step's micro-batches, of an iterator; their mean loss over all ranks."""
        source = iter(batches)
        alive: list[Any] = []
        failure: list[BaseException] = []

        def give(_user: Any, out: int) -> int:
            try:
                batch, kept = self._tensors(next(source))
            except StopIteration:
                failure.append(ArgumentError(f"the batches ended before the step's {self.gradient_accumulation_steps}"))
                return _abi.DS_ERR_ARG
            except BaseException as error:  # goes on behind the library's call
                failure.append(error)
                return _abi.DS_ERR_ARG
            alive[:] = [kept]
            ctypes.memmove(out, ctypes.byref(batch), ctypes.sizeof(batch))
            return _abi.DS_OK

        loss = ctypes.c_double()
        callback = BATCH_FN(give)
        status = C.ds_engine_train_batch(self.pointer, ctypes.cast(callback, ctypes.c_void_p), None, ctypes.byref(loss))
        alive.clear()
        if failure:
            raise failure[0]
        self.context.check(status)
        return loss.value

    def eval_batch(self, **tensors: TensorLike) -> float:
        """The loss without dropout and gradients, at any time."""
        batch, kept = self._tensors(tensors)
        loss = ctypes.c_double()
        self.context.check(C.ds_engine_eval_batch(self.pointer, ctypes.byref(batch), ctypes.byref(loss), None))
        del kept
        return loss.value

    def output(self, name: str) -> Tensor:
        """A named output of the newest forward: a view until the next call that runs something."""
        tensor = _abi.ds_tensor()
        self.context.check(C.ds_engine_output(self.pointer, name.encode(), ctypes.byref(tensor)))
        return Tensor._view(tensor, self)

    # ---- numbers

    loss = property(lambda self: C.ds_engine_loss(self.pointer), doc="Of the newest forward.")
    grad_norm = property(lambda self: C.ds_engine_grad_norm(self.pointer), doc="Of the newest step, before clipping.")
    loss_scale = property(lambda self: C.ds_engine_loss_scale(self.pointer))
    global_steps = property(lambda self: C.ds_engine_global_steps(self.pointer))
    skipped_steps = property(lambda self: C.ds_engine_skipped_steps(self.pointer))
    global_samples = property(lambda self: C.ds_engine_global_samples(self.pointer))
    n_parameters = property(lambda self: C.ds_engine_n_parameters(self.pointer))
    planned_bytes = property(lambda self: C.ds_engine_planned_bytes(self.pointer))
    train_micro_batch_size_per_gpu = property(lambda self: C.ds_engine_micro_batch(self.pointer))
    gradient_accumulation_steps = property(lambda self: C.ds_engine_accumulation(self.pointer))
    was_step_applied = property(lambda self: C.ds_engine_was_step_applied(self.pointer))

    @property
    def lr(self) -> float:
        """The learning rate of the next update; setting it overrides the schedule, None gives it back."""
        return C.ds_engine_lr(self.pointer)

    @lr.setter
    def lr(self, value: Optional[float]) -> None:
        self.context.check(C.ds_engine_set_lr(self.pointer, -1.0 if value is None else value))

    def is_gradient_accumulation_boundary(self) -> bool:
        return C.ds_engine_is_accumulation_boundary(self.pointer)

    # ---- weights by name

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes."""
        cells = C.ds_engine_cells(self.pointer)
        found = {}
        for i in range(C.ds_cells_count(cells)):
            cell = _abi.ds_cell_info.from_address(C.ds_cells_get(cells, i))
            if cell.kind == _abi.DS_CELL_PARAM:
                shape = cell.meta.shape
                found[cell.name.decode()] = tuple(shape.dims[k] for k in range(shape.n_dims))
        return found

    def get(self, name: str) -> Tensor:
        """A copy of a parameter in fp32. Collective."""
        shape = self.parameters().get(name)
        out = Tensor.empty(shape if shape is not None else (1,))
        self.context.check(C.ds_engine_get(self.pointer, _abi.DS_CELL_PARAM, name.encode(), out._address, out.nbytes // 4))
        return out

    def set(self, name: str, values: TensorLike) -> None:
        """Sets a parameter, and its master, from fp32. Collective."""
        tensor, kept = borrow(values, "f32")
        if tensor.meta.dtype != _abi.DS_DTYPE_F32:
            raise ArgumentError(f"{name} is set from fp32 values")
        count = C.ds_shape_count(tensor.meta.shape)
        self.context.check(C.ds_engine_set(self.pointer, _abi.DS_CELL_PARAM, name.encode(), tensor.data, count))
        del kept

    # ---- files

    def save_checkpoint(self, save_dir: Path, tag: Optional[str] = None, client_state: Optional[Mapping[str, Any]] = None) -> None:
        state = None if client_state is None else json.dumps(client_state).encode()
        self.context.check(C.ds_engine_save_checkpoint(self.pointer, encoded(save_dir), encoded(tag), state))

    def load_checkpoint(self, load_dir: Path, tag: Optional[str] = None) -> Optional[dict[str, Any]]:
        """Loads it, and gives the client_state that it was saved with."""
        text = ctypes.c_void_p()
        self.context.check(C.ds_engine_load_checkpoint(self.pointer, encoded(load_dir), encoded(tag), ctypes.byref(text)))
        return json.loads(take_text(text)) if text else None

    def save_16bit_model(self, save_dir: Path, tokenizer_dir: Optional[Path] = None) -> None:
        """A model folder that transformers loads."""
        self.context.check(C.ds_engine_save_16bit_model(self.pointer, encoded(save_dir), encoded(tokenizer_dir)))

    # ---- generation

    def generate(self, prompt: Union[str, Sequence[int]], max_new_tokens: int = 64, **sampling: Any) -> Any:
        """Goes on with a prompt, by the weights as they are now; see Generator.generate. Collective."""
        if self._generator is None:
            self._generator = Generator(engine=self)
            self._generator._needs = (self.model,)  # the engine owns it: no circle
            self._generator.steps = self.global_steps
        elif self._generator.steps != self.global_steps:
            self._generator.update()
            self._generator.steps = self.global_steps
        return self._generator.generate(prompt, max_new_tokens, tokenizer=self.tokenizer, **sampling)

    # ---- texts

    def plan(self) -> str:
        text = ctypes.c_void_p()
        self.context.check(C.ds_engine_print_plan(self.pointer, ctypes.byref(text)))
        return take_text(text)


def _ints(named: Mapping[str, _abi.ds_tensor], name: str) -> tuple[Any, int, int]:
    shape = named[name].meta.shape
    if shape.n_dims != 2 or named[name].meta.dtype != _abi.DS_DTYPE_I32:
        raise ArgumentError(f"{name}: expected whole numbers (B,T)")
    n = shape.dims[0] * shape.dims[1]
    return (ctypes.c_int32 * n).from_address(named[name].data), shape.dims[0], shape.dims[1]


def _put(named: dict[str, _abi.ds_tensor], name: str, values: Any, rows: int, columns: int) -> Any:
    data = array.array("i", values)
    tensor = _abi.ds_tensor(data=data.buffer_info()[0])
    tensor.meta.dtype = _abi.DS_DTYPE_I32
    tensor.meta.shape.n_dims, tensor.meta.shape.dims[0], tensor.meta.shape.dims[1] = 2, rows, columns
    named[name] = tensor
    return data


def _shift(named: dict[str, _abi.ds_tensor]) -> Any:
    """labels, as Hugging Face's models take them, become targets: each position's is the next label."""
    labels, rows, columns = _ints(named, "labels")
    del named["labels"]
    if "targets" in named:
        raise ArgumentError("give labels or targets, not both")
    return _put(named, "targets", (labels[r * columns + c + 1] if c + 1 < columns else _IGNORED
                                   for r in range(rows) for c in range(columns)), rows, columns)


def _complete(named: dict[str, _abi.ds_tensor]) -> Any:
    """positions and first of rows that hold one document each."""
    _, rows, columns = _ints(named, "input_ids")
    kept = []
    if "positions" not in named:
        kept.append(_put(named, "positions", list(range(columns)) * rows, rows, columns))
    if "first" not in named:
        kept.append(_put(named, "first", [0] * (rows * columns), rows, columns))
    return kept
