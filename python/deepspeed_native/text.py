# SPDX-License-Identifier: Apache-2.0
"""Tokenizers and chat templates."""
from __future__ import annotations

import ctypes
import json
import os
from typing import Any, Mapping, Optional, Sequence, Union

from . import _abi
from ._library import C, Context, Owned, encoded, hub_folder, id_array, take_bytes


class Tokenizer(Owned):
    """A tokenizer of a model folder, of a model's name in the Hugging Face cache (of a `revision`), a tokenizer.json, or "bytes"."""

    _destroy = "ds_tokenizer_close"

    def __init__(self, path: Union[str, "os.PathLike[str]"], context: Optional[Context] = None,
                 revision: Optional[str] = None) -> None:
        super().__init__(context)
        if os.fspath(path) != "bytes":
            path = hub_folder(self.context, path, revision, _abi.DS_HUB_TOKENIZER)
        self.context.check(C.ds_tokenizer_open(self.context.pointer, encoded(path), ctypes.byref(self._pointer)))
        self._scratch = ctypes.c_void_p()
        self.context.check(C.ds_tokenizer_scratch_create(self._pointer, 0, ctypes.byref(self._scratch)))

    def close(self) -> None:
        if getattr(self, "_scratch", None):
            C.ds_tokenizer_scratch_destroy(ctypes.byref(self._scratch))
            self._scratch = ctypes.c_void_p()
        super().close()

    def __len__(self) -> int:
        return C.ds_tokenizer_vocab_size(self.pointer)

    @property
    def eos_id(self) -> Optional[int]:
        found = C.ds_tokenizer_eos_id(self.pointer)
        return found if found >= 0 else None

    def is_eos(self, token: int) -> bool:
        return C.ds_tokenizer_is_eos(self.pointer, token)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        data = text.encode()
        tokens = _abi.ds_tokens()
        flags = _abi.DS_ENCODE_ADD_SPECIAL if add_special_tokens else 0
        self.context.check(C.ds_tokenizer_encode(self.pointer, self._scratch, data, len(data), flags, ctypes.byref(tokens)))
        return list((ctypes.c_uint32 * tokens.n).from_address(tokens.ids)) if tokens.n else []

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        flags = _abi.DS_DECODE_REPAIR | (_abi.DS_DECODE_SKIP_SPECIAL if skip_special_tokens else 0)
        array = id_array(ids)
        text, size = ctypes.c_void_p(), ctypes.c_size_t()
        self.context.check(C.ds_tokenizer_decode(self.pointer, array, len(ids), flags, ctypes.byref(text), ctypes.byref(size)))
        return take_bytes(text, size.value).decode(errors="replace")

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = False,
                            template: Optional[str] = None, **more: Any) -> str:
        """The chat as text, by the model's own template or a built-in one. more: tools, documents, variables."""
        own = {key: more.pop(key) for key in ("tools", "documents") if key in more}
        chat = {"messages": list(messages), **own, **({"chat_template_kwargs": more} if more else {})}
        data = json.dumps(chat).encode()
        handle, text = ctypes.c_void_p(), _abi.ds_chat_text()
        self.context.check(C.ds_chat_create(self.context.pointer, self.pointer, encoded(template), ctypes.byref(handle)))
        try:
            flags = _abi.DS_CHAT_GENERATION_PROMPT if add_generation_prompt else 0
            self.context.check(C.ds_chat_render_json(handle, data, len(data), flags, ctypes.byref(text)))
            rendered = ctypes.string_at(text.text, text.size).decode()
            C.ds_chat_text_free(ctypes.byref(text))
        finally:
            C.ds_chat_destroy(ctypes.byref(handle))
        return rendered
