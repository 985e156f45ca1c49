# SPDX-License-Identifier: Apache-2.0
"""libdeepspeed from Python: train and generate without PyTorch.

    import deepspeed_native as ds
    engine = ds.initialize(model="Qwen2.5-0.5B", config="ds.json", seq_length=512, trainer={"learning_rate": 2e-5})
    loss = engine.train_batch(batches)
    engine.generate([1, 2, 3], max_new_tokens=20)

Tensors come from and go to numpy, torch and others without copies (tensors.py); errors are exceptions with the library's
messages (errors.py); the whole C interface is there as `deepspeed_native.C`, typed by its headers.
"""
from ._library import C, Context
from .config import Config
from .data import Dataset, Loader
from .engine import Engine, initialize
from .errors import (ArgumentError, ConfigError, DeepSpeedError, NotFoundError, PeerError, ShapeError, StateError)
from .generation import Generator
from .model import Model
from .planning import plan
from .tensors import Tensor
from .text import Tokenizer

__version__: str = C.ds_version_text().decode()
__all__ = ["ArgumentError", "C", "Config", "ConfigError", "Context", "Dataset", "DeepSpeedError", "Engine", "Generator", "Loader",
           "Model", "NotFoundError", "PeerError", "ShapeError", "StateError", "Tensor", "Tokenizer", "initialize", "plan"]
