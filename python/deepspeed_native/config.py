# SPDX-License-Identifier: Apache-2.0
"""Configurations: DeepSpeed's JSON or HJSON, from a dict, a text or a file."""
from __future__ import annotations

import ctypes
import json
import os
from typing import Any, Mapping, Optional, Union

from . import _abi
from ._library import C, Context, Owned, encoded, take_text
from .errors import ArgumentError

ConfigLike = Union["Config", Mapping[str, Any], str, "os.PathLike[str]"]


def trainer_values(given: Mapping[str, float]) -> _abi.ds_trainer_values:
    """A trainer's flags by their names: micro_batch, learning_rate, total_steps …; None is not given."""
    known = {name for name, _ in _abi.ds_trainer_values._fields_} - {"reserved"}
    values = _abi.ds_trainer_values()
    for name, value in given.items():
        if name not in known:
            raise ArgumentError(f"there is no trainer value {name!r}; there are: {', '.join(sorted(known))}")
        if value is None:
            continue
        field = getattr(values, name)
        if isinstance(field, _abi.ds_maybe):
            field.known, field.value = True, float(value)
        else:
            setattr(values, name, value.encode() if isinstance(value, str) else value)
    return values


class Config(Owned):
    """A configuration. A dict is written as JSON first; a str that begins with "{" is text, any other a path."""

    _destroy = "ds_config_destroy"

    def __init__(self, source: ConfigLike, context: Optional[Context] = None) -> None:
        super().__init__(context)
        out = ctypes.byref(self._pointer)
        if isinstance(source, Mapping):
            source = json.dumps(source)
        if isinstance(source, str) and source.lstrip().startswith("{"):
            text = source.encode()
            status = C.ds_config_load_text(self.context.pointer, b"config", text, len(text), None, out)
        else:
            status = C.ds_config_load_file(self.context.pointer, encoded(source), None, out)
        self.context.check(status)

    def resolve(self, world_size: int = 1, **trainer: Any) -> "Config":
        """Fills what the file leaves open, for so many ranks; see trainer_values."""
        values = trainer_values(trainer)
        self.context.check(C.ds_config_resolve(self.pointer, world_size, ctypes.byref(values)))
        return self

    @property
    def notices(self) -> list[str]:
        """What a user should read once."""
        return [C.ds_config_notice(self.pointer, i).decode() for i in range(C.ds_config_n_notices(self.pointer))]

    def __getitem__(self, path: str) -> Any:
        """The effective value of a path: config["zero_optimization.stage"]."""
        item = C.ds_config_find(self.pointer, path.encode())
        if not item:
            raise KeyError(path)
        return json.loads(_abi.ds_config_item.from_address(item).value)

    def to_dict(self) -> dict[str, Any]:
        """The effective configuration, after resolve."""
        text = ctypes.c_void_p()
        self.context.check(C.ds_config_print(self.pointer, False, ctypes.byref(text)))
        return json.loads(take_text(text))
