"""What compressors make of streams of which that is known."""

from __future__ import annotations

import numpy as np
import pytest

from attnres_cli.data import compression
from attnres_cli.data.compression import bits_per_byte


def test_noise_takes_eight_bits_and_no_less():
    noise = np.random.default_rng(0).integers(0, 256, 100_000, dtype=np.uint8)

    assert bits_per_byte(noise) == pytest.approx({"zlib": 8, "xz": 8}, abs=0.01)


def test_a_constant_takes_next_to_nothing():
    assert all(bits < 0.02 for bits in bits_per_byte(np.zeros(100_000, dtype=np.uint8)).values())


def test_xz_sees_what_lies_too_far_back_for_zlib():
    noise = np.random.default_rng(0).integers(0, 256, 100_000, dtype=np.uint8)

    bits = bits_per_byte(np.tile(noise, 4))

    assert bits["zlib"] > 7.9
    assert bits["xz"] < 2.1


def test_only_the_beginning_of_a_long_stream_is_compressed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compression, "MOST", 50_000)
    stream = np.zeros(100_000, dtype=np.uint8)
    stream[50_000:] = np.random.default_rng(0).integers(0, 256, 50_000)

    assert bits_per_byte(stream)["xz"] < 0.05
