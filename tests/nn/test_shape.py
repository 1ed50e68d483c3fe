"""Parameters and FLOPs of a shape are those worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnres_cli.nn.shape import Shape


@pytest.fixture
def shape() -> Shape:
    """Two layers of width 4; two heads of 2 share one key-value head; ten tokens, context 3."""
    return Shape(
        n_layers=2, d_model=4, n_heads=2, n_kv_heads=1, d_head=2, d_ff=6, vocab_size=10, seq_len=3
    )


def test_parameters_of_a_swiglu_trunk(shape: Shape):
    queries, keys, values, output = 4 * 4, 4 * 2, 4 * 2, 4 * 4
    gate, up, down = 4 * 6, 4 * 6, 6 * 4
    layer = queries + keys + values + output + gate + up + down
    norms = 5 * 4  # before each of four sublayers, and the last one
    embedding, head = 10 * 4, 10 * 4

    assert shape.n_params() == 2 * layer + norms + embedding + head == 340


def test_flops_count_each_multiply_add_as_two(shape: Shape):
    matrices = 2 * 2 * 120  # two layers of 120 weights
    scores = 2 * (2 * 3 * 2 * 2)  # per layer: 3 positions, 2 heads of 2
    mixing = scores  # the weighted sum of values takes as much
    head = 2 * 4 * 10

    assert shape.flops_per_token() == matrices + scores + mixing + head == 656


@pytest.mark.parametrize(
    ("changes", "params", "flops"),
    [
        ({"mlp": "gelu"}, -2 * 4 * 6, -2 * 2 * 4 * 6),  # it has no gate
        ({"tie_embeddings": True}, -10 * 4, 0),
        ({"n_kv_heads": 2}, 2 * (2 * 4 * 2), 2 * 2 * (2 * 4 * 2)),  # their two matrices
        ({"seq_len": 6}, 0, 2 * 48),  # only attention grows with the context
    ],
)
def test_a_change_of_shape_changes_both_counts(
    shape: Shape, changes: dict, params: int, flops: int
):
    changed = replace(shape, **changes)

    assert changed.n_params() == 340 + params
    assert changed.flops_per_token() == 656 + flops


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_kv_heads": 0}, "n_kv_heads must be a whole number from 1 on, got 0"),
        ({"n_layers": -1}, "n_layers must be a whole number from 1 on, got -1"),
        ({"d_model": 4.0}, "d_model must be a whole number from 1 on, got 4.0"),
        ({"d_latent": -1}, "d_latent must be a whole number from 0 on, got -1"),
        ({"attention": "sofmax"}, "attention is softmax or mla or kda, got 'sofmax'"),
        ({"mlp": ["gelu", "geglu"]}, "mlp is swiglu or gelu or relu2 or moe, got 'geglu'"),
        ({"mlp": ["gelu", ["gelu"]]}, "mlp is swiglu"),
        ({"positions": "alibi"}, "positions is rope or none, got 'alibi'"),
        ({"attention": ()}, "names at least one kind"),
        ({"mlp": "moe"}, "top_k must be 1 to n_experts, got 0 of 0"),
    ],
)
def test_what_no_model_can_have_is_refused_by_name(shape: Shape, changes: dict, words: str):
    with pytest.raises(ValueError, match=words):
        replace(shape, **changes)


def test_the_latent_of_mla_is_as_wide_as_four_heads_unless_it_is_given(shape: Shape):
    latent = replace(shape, attention=("softmax", "mla"), positions="none")

    assert shape.d_latent == 0
    assert latent.d_latent == 4 * 2
    assert replace(latent, d_latent=6).d_latent == 6


def test_heads_that_cannot_be_are_refused_with_their_numbers(shape: Shape):
    with pytest.raises(ValueError, match=r"d_head must be even.*got 3"):
        replace(shape, d_head=3)
    with pytest.raises(ValueError, match="multiple of n_kv_heads, got 2 and 4"):
        replace(shape, n_kv_heads=4)
