"""The baseline against the loop that everyone writes."""

from __future__ import annotations

import torch
from designs import build

from attnres_cli.nn.shape import Shape


def test_standard_is_the_plain_prenorm_loop_bit_for_bit(tiny_shape: Shape):
    model = build("standard", tiny_shape)
    tokens = torch.randint(0, 11, (2, 8), generator=torch.Generator().manual_seed(0))

    h = model.embed(tokens)
    for f in model.sublayers:
        h = h + f(h)

    assert torch.equal(model(tokens), model.head(model.norm(h)))


def test_m_of_standard_is_all_ones_below_the_diagonal(tiny_shape: Shape):
    model = build("standard", tiny_shape)

    mixing = model.residual.depth_mixing([torch.zeros(1, 1, 16)] * 7)

    assert torch.equal(mixing[0, 0, 0], torch.ones(7, 7).tril())
