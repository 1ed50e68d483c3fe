"""The parts of sublayers add up to the whole, and the memory of a design is counted. Real ranks are
in tests/cli/test_prefill.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from designs import build

from attnres_cli.nn.model import Transformer
from attnres_cli.nn.shape import Shape
from attnres_cli.nn.sharded import Held, _cut, shard
from attnres_cli.nn.trunk.attention import Attention

SHAPE = Shape(2, 32, 4, 2, 8, 24, vocab_size=11, seq_len=512)


def model(spec: str, shape: Shape = SHAPE) -> Transformer:
    return build(spec, shape).double().eval()


@pytest.mark.parametrize(
    ("attention", "mlp"),
    [("softmax", "swiglu"), ("softmax", "gelu"), ("softmax", "relu2"), ("kda", "swiglu")],
)
def test_parts_of_heads_and_channels_add_up(attention: str, mlp: str):
    shape = replace(SHAPE, attention=attention, mlp=mlp, qk_norm=mlp == "relu2")
    x = torch.randn(2, 16, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for f in model("standard", shape).sublayers:
        part = f[1]
        parts = [_cut(part, shape, rank, 2) for rank in (0, 1)]

        assert sum(cut.out.weight.numel() for cut in parts) == part.out.weight.numel()
        torch.testing.assert_close(sum(cut(x) for cut in parts), part(x), rtol=0, atol=1e-14)
        if isinstance(part, Attention):
            assert [cut.n_kv_heads for cut in parts] == [1, 1]


def test_heads_that_ranks_do_not_divide_and_sublayers_without_parts_are_refused():
    with pytest.raises(ValueError, match=r"3 ranks do not divide n_heads 4, n_kv_heads 2$"):
        shard(model("standard"), 0, 3)
    shape = replace(SHAPE, attention=("softmax", "mla"), positions="none", d_latent=8)
    with pytest.raises(ValueError, match="sublayers of mla have no parts for ranks"):
        shard(model("standard", shape), 0, 2)


@pytest.mark.parametrize(
    ("spec", "n"), [("standard", 1), ("attnres:block_size=2", 3), ("attnres", 5), ("hc", 4)]
)
def test_the_state_of_a_design_is_counted_in_vectors_per_token(spec: str, n: int):
    tokens = torch.zeros(2, 512, dtype=torch.long)  # too many to lie in a buffer of few tokens
    watched = model(spec)
    held = Held(watched)

    with torch.inference_mode():
        watched.hidden(tokens)

    assert held.peak == n * 2 * 512 * 32 * 8
