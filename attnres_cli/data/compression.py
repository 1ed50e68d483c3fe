"""What general compressors make of a text: reference lines beside a model's loss."""

from __future__ import annotations

import lzma
import zlib

import numpy as np

from attnres_cli.data.tokens import Stream

MOST = 2**20
"""Bytes that are compressed; xz takes a second for them."""


def bits_per_byte(stream: Stream) -> dict[str, float]:
    """`zlib` and `xz`, each at its hardest, on the first MOST bytes of a stream of bytes.

    A compressor sees a longer context than a model's sequence, and nothing of the training data.
    """
    head = np.asarray(stream[:MOST], dtype=np.uint8).tobytes()
    packed = {"zlib": zlib.compress(head, 9), "xz": lzma.compress(head, preset=9)}
    return {name: 8 * len(short) / max(1, len(head)) for name, short in packed.items()}
