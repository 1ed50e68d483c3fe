"""What a user sees who may not do all that this one may."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

NOBODY = 65534


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without root's right to read and write what the mode of a file or folder forbids."""
    user = os.geteuid()
    try:
        if user == 0:
            os.seteuid(NOBODY)
    except OSError:
        pytest.skip("this root cannot become another user")
    try:
        yield
    finally:
        os.seteuid(user)
