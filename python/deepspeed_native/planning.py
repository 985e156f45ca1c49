# SPDX-License-Identifier: Apache-2.0
"""What a run costs before it runs."""
from __future__ import annotations

import ctypes
import json
from typing import Any, Mapping, Optional

from . import _abi
from ._library import C, encoded, take_text
from .config import Config, ConfigLike
from .model import Model, ModelLike


def plan(model: ModelLike, config: ConfigLike, seq_length: int, ranks: int = 1, *, trainer: Optional[Mapping[str, Any]] = None,
         nodes: int = 1, memory_bytes: int = 0, device: Optional[str] = None) -> dict[str, Any]:
    """The report of ds_plan: memory by kind, communication, operations, with a device time; "text" is the page for people."""
    model = model if isinstance(model, Model) else Model(model)
    config = config if isinstance(config, Config) else Config(config, model.context)
    config.resolve(ranks, **(trainer or {}))
    params = _abi.ds_plan_params(model=model.pointer, config=config.pointer, seq_length=seq_length, n_nodes=nodes,
                                 memory_bytes=memory_bytes, device=encoded(device))
    out = {}
    for format_ in (_abi.DS_PLAN_JSON, _abi.DS_PLAN_TEXT):
        text, fits = ctypes.c_void_p(), ctypes.c_bool()
        model.context.check(C.ds_plan_report(model.context.pointer, ctypes.byref(params), format_, ctypes.byref(fits),
                                             ctypes.byref(text)))
        out[format_] = take_text(text)
    return {**json.loads(out[_abi.DS_PLAN_JSON]), "text": out[_abi.DS_PLAN_TEXT]}
