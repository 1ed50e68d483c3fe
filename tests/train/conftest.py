"""What tests of training share: one thread, few tokens, a tiny recipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from attnres_variants.standard import Standard
from training import Lab

from attnres_cli.config.recipe import Recipe
from attnres_cli.data.documents import Document
from attnres_cli.data.tokens import Tokens, of_bytes
from attnres_cli.nn import residual


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Models this small gain nothing from a second one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tokens() -> Tokens:
    text = np.random.default_rng(0).integers(97, 105, size=20_000).astype(np.uint8).tobytes()
    return of_bytes("text", [Document("one", text[:18_000])], [Document("two", text[18_000:])])


@pytest.fixture
def lab(tiny_recipe: Recipe, tokens: Tokens) -> Lab:
    """Six steps, evaluated after 0, 3 and 6."""
    return Lab(tiny_recipe, tokens)


class Noisy(Standard):
    """Draws from torch's generator, as dropout does, where it learns."""

    def write(self, state, l, y):
        return state + torch.nn.functional.dropout(y, 0.1, torch.is_grad_enabled())


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, type], object]:
    """A function that makes a design known, for one test; `noisy` is known already."""
    residual.registry()
    monkeypatch.setattr(residual, "_REGISTRY", dict(residual._REGISTRY))
    residual.register("noisy")(Noisy)
    return lambda name, cls: residual.register(name)(cls)
