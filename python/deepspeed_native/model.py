# SPDX-License-Identifier: Apache-2.0
"""Models by their config.json."""
from __future__ import annotations

import ctypes
import json
import os
import pathlib
from typing import Any, Mapping, Optional, Union

from . import _abi
from ._library import C, Context, Owned, encoded, hub_folder, take_text

ModelLike = Union["Model", Mapping[str, Any], str, "os.PathLike[str]"]


class Model(Owned):
    """A model folder, the name of a model in the Hugging Face cache ("org/name", of a `revision`), a config.json, or its contents
    as a dict. `weights` is the folder when it has safetensors."""

    _destroy = "ds_model_destroy"

    def __init__(self, source: ModelLike, context: Optional[Context] = None, revision: Optional[str] = None) -> None:
        super().__init__(context)
        self.weights: Optional[str] = None
        out = ctypes.byref(self._pointer)
        if isinstance(source, Mapping):
            status = C.ds_model_from_text(self.context.pointer, json.dumps(source).encode(), out)
        else:
            path = pathlib.Path(os.fspath(source))  # type: ignore[arg-type]
            if revision is not None or not path.exists():
                path = pathlib.Path(hub_folder(self.context, source, revision, _abi.DS_HUB_MODEL))  # type: ignore[arg-type]
            if path.is_dir():
                self.weights = str(path) if any(path.glob("*.safetensors")) else None
                path = path / "config.json"
            status = C.ds_model_from_config(self.context.pointer, encoded(path), out)
        self.context.check(status)

    @property
    def info(self) -> _abi.ds_model_info:
        return _abi.ds_model_info.from_address(C.ds_model_get_info(self.pointer))

    @property
    def architecture(self) -> str:
        return self.info.architecture.decode()

    def __str__(self) -> str:
        """Its constants, a line each."""
        text = ctypes.c_void_p()
        self.context.check(C.ds_model_print(self.pointer, ctypes.byref(text)))
        return take_text(text)
