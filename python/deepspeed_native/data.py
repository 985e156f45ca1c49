# SPDX-License-Identifier: Apache-2.0
"""Training data: files to batches."""
from __future__ import annotations

import ctypes
import json
import os
from typing import Any, Iterator, Optional, Sequence, Union

from . import _abi
from ._library import C, Context, Owned, encoded, take_text
from .errors import ArgumentError
from .tensors import Tensor
from .text import Tokenizer

Batch = dict[str, Tensor]


class Dataset(Owned):
    """Files of text, rows (.jsonl, .json, .csv, .parquet …) or token ids. More of ds_dataset_params by name.

    alpaca, as of ds_train: rows of instruction and output are messages in the chat template ("template") or Stanford's prompt
    ("stanford"); "auto": the template where there is one.
    """

    _destroy = "ds_dataset_close"

    def __init__(self, files: Union[str, "os.PathLike[str]", Sequence[Any]], tokenizer: Optional[Tokenizer], seq_length: int,
                 chat_template: Optional[str] = None, context: Optional[Context] = None, alpaca: str = "auto", **more: Any) -> None:
        super().__init__(context)
        if alpaca not in ("auto", "template", "stanford"):
            raise ArgumentError(f'alpaca is {alpaca!r}, expected "auto", "template" or "stanford"')
        names = [files] if isinstance(files, (str, os.PathLike)) else list(files)
        paths = (ctypes.c_char_p * len(names))(*(encoded(name) for name in names))
        more = {name: encoded(value) if isinstance(value, (str, os.PathLike)) else value for name, value in more.items()}
        params = _abi.ds_dataset_params(files=ctypes.addressof(paths), n_files=len(names), seq_length=seq_length, **more)
        chat = ctypes.c_void_p()
        if tokenizer is not None:
            params.tokenizer = tokenizer.pointer
            if chat_template is not None or C.ds_tokenizer_chat_template(tokenizer.pointer):
                self.context.check(C.ds_chat_create(self.context.pointer, tokenizer.pointer, encoded(chat_template),
                                                    ctypes.byref(chat)))
        if alpaca == "template" and not chat:
            raise ArgumentError('alpaca "template" needs a chat template, and the tokenizer has none: give chat_template="chatml"')
        params.chat = chat
        params.alpaca = _abi.DS_ALPACA_CHAT if chat and alpaca != "stanford" else _abi.DS_ALPACA_PROMPT
        try:
            self.context.check(C.ds_dataset_open(self.context.pointer, ctypes.byref(params), ctypes.byref(self._pointer)))
        finally:
            C.ds_chat_destroy(ctypes.byref(chat))
        self.seq_length = seq_length

    @property
    def info(self) -> _abi.ds_dataset_info:
        return C.ds_dataset_get_info(self.pointer)

    def split(self, fraction: float) -> "Dataset":
        """Splits off the last part, for evaluation."""
        tail = Dataset.__new__(Dataset)
        Owned.__init__(tail, self.context)
        tail.seq_length = self.seq_length
        self.context.check(C.ds_dataset_split(self.pointer, fraction, ctypes.byref(tail._pointer)))
        return tail


class Loader(Owned):
    """Batches of a dataset without end: an iterator of {"input_ids", "targets", "positions", "first"}, each i32 (B,T) and
    valid until the next. Its state goes into a checkpoint: save_checkpoint(…, client_state=loader.state()).

    Ranks of a job get samples of their own: rank and n_ranks are the engine's dp_rank and dp_world_size, unless they are given
    (0 and 1: all samples on every rank).
    """

    _destroy = "ds_loader_destroy"

    def __init__(self, dataset: Dataset, batch: int, seed: int = 0, shuffle: bool = True, rank: Optional[int] = None,
                 n_ranks: Optional[int] = None) -> None:
        super().__init__(dataset.context, dataset)
        if (rank is None) != (n_ranks is None):
            raise ArgumentError("give both rank and n_ranks, or neither")
        if rank is None:
            if self.context.data_ranks is None and os.environ.get("WORLD_SIZE", "1") != "1":
                raise ArgumentError("this rank's samples are not known yet: make the engine before the Loader, or give rank and "
                                    "n_ranks")
            rank, n_ranks = self.context.data_ranks or (0, 1)
        params = _abi.ds_loader_params(batch=batch, seq_length=dataset.seq_length, seed=seed, shuffle=shuffle, rank=rank,
                                       n_ranks=n_ranks)
        self.context.check(C.ds_loader_create(self.context.pointer, dataset.pointer, ctypes.byref(params),
                                              ctypes.byref(self._pointer)))

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch = _abi.ds_loader_batch()
        self.context.check(C.ds_loader_next(self.pointer, ctypes.byref(batch)))
        return {name: Tensor._view(getattr(batch, name), self) for name in ("input_ids", "targets", "positions", "first")}

    @property
    def epoch(self) -> int:
        return C.ds_loader_epoch(self.pointer)

    def state(self) -> dict[str, Any]:
        text = ctypes.c_void_p()
        self.context.check(C.ds_loader_save(self.pointer, ctypes.byref(text)))
        return json.loads(take_text(text))

    def restore(self, state: dict[str, Any]) -> None:
        self.context.check(C.ds_loader_restore(self.pointer, json.dumps(state).encode()))
