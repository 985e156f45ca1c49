# SPDX-License-Identifier: Apache-2.0
"""The library's errors as exceptions, with its messages."""
from __future__ import annotations

from . import _abi

_NAMES = {value: name[3:] for name, value in _abi.ENUMS["ds_status"].items()}


class DeepSpeedError(RuntimeError):
    """What the library says went wrong. `status` is its name of the kind ("ERR_SHAPE"), `place` where it was decided."""

    def __init__(self, message: str, status: str = "ERR_ARG", place: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.place = place


class ConfigError(DeepSpeedError, ValueError):
    """A configuration is wrong: every error of the file together."""


class ArgumentError(DeepSpeedError, ValueError):
    """A call was given something that it cannot take."""


class ShapeError(DeepSpeedError, ValueError):
    """A shape or an element type does not fit."""


class StateError(DeepSpeedError):
    """A call came out of order."""


class NotFoundError(DeepSpeedError, LookupError):
    """A file, a tensor, a key or a name is not there."""


class PeerError(DeepSpeedError):
    """Another rank failed, is missing or disagrees."""


_CLASSES: dict[str, type[DeepSpeedError]] = {
    "ERR_CONFIG": ConfigError, "ERR_ARG": ArgumentError, "ERR_SHAPE": ShapeError, "ERR_STATE": StateError,
    "ERR_NOT_FOUND": NotFoundError, "ERR_PEER": PeerError,
}


def error_of(status: int, message: str, place: str) -> DeepSpeedError:
    name = _NAMES.get(status, str(status))
    return _CLASSES.get(name, DeepSpeedError)(message or name, name, place)
