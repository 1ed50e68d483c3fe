"""Public code that tests compare ours with, where the extra `oracle` is installed."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import pytest


def public(module: str) -> Any:
    """A module of fla-core, whose import warns that there is no GPU. The test is skipped without.

    It imports more of Triton, which has to be as what there is of it: interpreted, where tests of
    kernels have imported it so.
    """
    reason = "needs fla-core and triton"
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        if _is_interpreted():
            patch.setenv("TRITON_INTERPRET", "1")
        return pytest.importorskip(module, reason=reason)


def _is_interpreted() -> bool:
    if "triton.language" not in sys.modules:
        return False
    from triton.runtime.interpreter import InterpretedFunction

    return isinstance(sys.modules["triton.language"].sum, InterpretedFunction)
