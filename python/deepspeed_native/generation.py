# SPDX-License-Identifier: Apache-2.0
"""Generation, from a live engine or from a model folder."""
from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any, Iterator, Optional, Sequence, Union

from . import _abi
from ._library import C, Context, Owned, encoded, id_array
from .errors import ArgumentError
from .model import Model
from .tensors import Tensor
from .text import Tokenizer

if TYPE_CHECKING:
    from .engine import Engine


class Generator(Owned):
    """One sequence at a time. Give an engine, or a model folder."""

    _destroy = "ds_generator_destroy"

    def __init__(self, model: Optional[Union[Model, str, "os.PathLike[str]"]] = None, *, engine: Optional["Engine"] = None,
                 max_length: int = 0, dtype: Optional[str] = None, context: Optional[Context] = None) -> None:
        self.steps = -1  # of the engine, when its weights were taken
        params = _abi.ds_generator_params(max_length=max_length, dtype=C.ds_dtype_from_name(dtype.encode()) if dtype else 0)
        if engine is not None:
            super().__init__(engine.context, engine)
            params.engine = engine.pointer
        else:
            model = model if isinstance(model, Model) else Model(model, context)  # type: ignore[arg-type]
            if model.weights is None:
                raise ArgumentError("the model folder has no weights (*.safetensors)")
            super().__init__(model.context, model)
            params.model, params.weights = model.pointer, encoded(model.weights)
        self.context.check(C.ds_generator_create(self.context.pointer, ctypes.byref(params), ctypes.byref(self._pointer)))

    def update(self) -> None:
        """Takes the engine's weights as they are now. Collective."""
        self.context.check(C.ds_generator_update(self.pointer))

    def prompt(self, ids: Sequence[int]) -> None:
        array = id_array(ids)
        self.context.check(C.ds_generator_prompt(self.pointer, array, len(ids)))

    def tokens(self, temperature: float = 0.0, top_k: int = 0, top_p: float = 0.0, seed: int = 0) -> Iterator[int]:
        """Ids without end, up to the longest sequence; temperature 0 takes the likeliest."""
        sampling = _abi.ds_sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        token = ctypes.c_uint32()
        while C.ds_generator_length(self.pointer) < C.ds_generator_max_length(self.pointer):
            self.context.check(C.ds_generator_next(self.pointer, ctypes.byref(sampling), ctypes.byref(token)))
            yield token.value

    def logits(self) -> Tensor:
        """Behind the newest id, f32 (V): a view until the next call."""
        n = ctypes.c_int64()
        address = C.ds_generator_logits(self.pointer, ctypes.byref(n))
        if not address:
            raise ArgumentError("give a prompt first")
        return Tensor("f32", (n.value,), address, self)

    def generate(self, prompt: Union[str, Sequence[int]], max_new_tokens: int = 64, *, tokenizer: Optional[Tokenizer] = None,
                 **sampling: Any) -> Any:
        """New ids for ids; new text for a text, with a tokenizer. Ends with the tokenizer's end, too."""
        if isinstance(prompt, str) and tokenizer is None:
            raise ArgumentError("a text needs a tokenizer: initialize(…, tokenizer=Tokenizer(folder)), or give ids")
        if max_new_tokens < 0:
            raise ArgumentError(f"max_new_tokens is {max_new_tokens}, expected at least 0")
        self.prompt(tokenizer.encode(prompt) if isinstance(prompt, str) else prompt)  # type: ignore[union-attr]
        new: list[int] = []
        for token in self.tokens(**sampling) if max_new_tokens > 0 else ():
            if tokenizer is not None and tokenizer.is_eos(token):
                break
            new.append(token)
            if len(new) == max_new_tokens:
                break
        if isinstance(prompt, str) and tokenizer is not None:
            return tokenizer.decode([token for token in new if token < len(tokenizer)])  # a model may have padding ids
        return new
