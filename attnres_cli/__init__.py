"""attnres finds out which residual connection a Transformer should be trained with.

This is the public interface. A name is imported when it is first used: torch takes a second.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnres_cli.lab.notebook import open_study
    from attnres_cli.nn.exported import load
    from attnres_cli.nn.model import Transformer
    from attnres_cli.nn.residual import Residual, register
    from attnres_cli.nn.shape import Shape
    from attnres_cli.nn.variant import parse

__all__ = ["Residual", "Shape", "Transformer", "load", "open_study", "parse", "register"]
__version__ = "0.1.0"

_MODULES = {
    "Residual": "nn.residual",
    "Shape": "nn.shape",
    "Transformer": "nn.model",
    "load": "nn.exported",
    "open_study": "lab.notebook",
    "parse": "nn.variant",
    "register": "nn.residual",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
