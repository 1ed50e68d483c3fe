"""What compressors make of texts of which that is known."""

from __future__ import annotations

import numpy as np
import pytest

from attnres_cli.data import tokens as compression
from attnres_cli.data.tokens import bits_per_byte

NOISE = np.random.default_rng(0).integers(0, 256, 100_000, dtype=np.uint8).tobytes()


def test_noise_takes_eight_bits_and_no_less():
    assert bits_per_byte(NOISE) == pytest.approx((8, 8), abs=0.01)


def test_a_constant_takes_next_to_nothing():
    assert all(bits < 0.02 for bits in bits_per_byte(bytes(100_000)))


def test_xz_sees_what_lies_too_far_back_for_zlib():
    zlib_bits, xz_bits = bits_per_byte(4 * NOISE)

    assert zlib_bits > 7.9
    assert xz_bits < 2.1


def test_only_the_beginning_of_a_long_text_is_compressed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compression, "MOST", 50_000)

    assert bits_per_byte(bytes(50_000) + NOISE)[1] < 0.05
