"""Public code that tests compare ours with, where the extra `oracle` is installed."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import pytest


def public(module: str) -> Any:
    """Import a module of fla-core, or skip the test. Without a GPU it warns, and it imports more of
    Triton, which must be interpreted if tests of kernels have imported the rest of it so.
    """
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        if _is_interpreted():
            patch.setenv("TRITON_INTERPRET", "1")
        return pytest.importorskip(module, reason="needs fla-core and triton")


def _is_interpreted() -> bool:
    if "triton.language" not in sys.modules:
        return False
    from triton.runtime.interpreter import InterpretedFunction

    return isinstance(sys.modules["triton.language"].sum, InterpretedFunction)
