"""Documents that lie in one row of tokens, where no token attends to another document's.

Letters: B batch, T time.
"""

from __future__ import annotations

import torch
from torch import Tensor


def numbered(tokens: Tensor, separator: int) -> Tensor:
    """(B, T), from tokens (B, T): how many separators are before a token, the number of its
    document. A separator belongs to the document that it ends. Nothing waits for the device.
    """
    ends = (tokens == separator).long()
    return ends.cumsum(dim=1) - ends


def mask(documents: Tensor, x: Tensor) -> Tensor:
    """(B, 1, T, T) of documents (B, T), to be added to scores: 0 where a token attends to itself or
    an earlier one of its document, else -inf. It has the type in which what is made of x attends:
    attentions share it, and each would make one of booleans.
    """
    kind, dtype = x.device.type, x.dtype
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
    seen = (documents[:, :, None] == documents[:, None, :]).tril()
    added = torch.zeros(seen.shape, dtype=dtype, device=x.device)
    return added.masked_fill_(~seen, -torch.inf)[:, None]
