"""Triton's kernels run on a GPU where there is one, and in Triton's interpreter elsewhere.

Triton decides between the two when a kernel is defined, and asks again while one runs. So this file
imports it before any test runs, and sets the environment only during the tests of this folder:
other tests, and the processes they start, see no difference.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from attnres_cli.nn.depthmix import engines

INTERPRETED = engines.has_triton() and (
    engines.interprets_triton() or not torch.cuda.is_available()
)

if INTERPRETED:
    with pytest.MonkeyPatch.context() as _patch:
        _patch.setenv("TRITON_INTERPRET", "1")
        import triton.language
        from attnres_variants.parts import sinkhorn_kernels
        from triton.runtime.interpreter import InterpretedFunction

        from attnres_cli.nn.depthmix.fused import kernels

        for _function in (triton.language.sum, kernels.mix_kernel, sinkhorn_kernels._made):
            if not isinstance(_function, InterpretedFunction):
                raise pytest.UsageError(
                    "Triton was imported before tests/depthmix could ask for its interpreter: "
                    "set TRITON_INTERPRET=1"
                )


@pytest.fixture(autouse=True, scope="module")
def interpreter() -> Iterator[None]:
    """Use Triton's interpreter in the tests of a file, where there is no GPU."""
    with pytest.MonkeyPatch.context() as patch:
        if INTERPRETED:
            patch.setenv("TRITON_INTERPRET", "1")
        yield


@pytest.fixture(autouse=True)
def same_settings() -> Iterator[None]:
    """Fail if a test leaves the environment changed."""
    before = os.environ.get("TRITON_INTERPRET")
    yield
    assert os.environ.get("TRITON_INTERPRET") == before
