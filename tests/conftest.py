"""What many tests need: tiny shapes, a tiny recipe, a seeded generator."""

from __future__ import annotations

import pytest

from attnres_cli.recipe import Recipe, validate
from attnres_cli.shape import Shape


@pytest.fixture
def tiny_shape() -> Shape:
    """Three layers, six sublayers, width 16, eleven tokens, and an eps too small to matter."""
    return Shape(
        n_layers=3,
        d_model=16,
        n_heads=2,
        n_kv_heads=2,
        d_head=8,
        d_ff=24,
        vocab_size=11,
        seq_len=8,
        norm_eps=1e-12,
    )


@pytest.fixture
def tiny_recipe() -> Recipe:
    """A recipe that trains six steps in a moment."""
    values = {
        "name": "tiny",
        "model": {"n_layers": 3, "d_model": 16, "n_heads": 2, "seq_len": 16},
        "optim": {"lr": 1e-2},
        "train": {"tokens": 384, "batch_size": 4, "eval_tokens": 256, "n_evals": 2},
    }
    return validate(values, "tiny")
