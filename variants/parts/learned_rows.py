"""Maps whose rows are learned for each sublayer, and may depend on the stream that they are for."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .many_streams import ManyStreams, Maps, Own


class LearnedRows(ManyStreams):
    """Row j of the maps is b_j + s tanh(RMSNorm(x_j) W), b, s, W learned for each sublayer; the
    last column, which writes, has an s of its own.
    """

    rate_falls = (("static", 0, 1), ("weight", 1, 1), ("scale", 0, 1))

    def learn(self, rows: Tensor, width: int, *, dynamic: bool) -> None:
        """Add the parameters: rows (L, n, K) are b at the start, W (width, K) is zero."""
        n_sublayers, _, columns = rows.shape
        self.static = nn.Parameter(rows)
        self.weight = self.gain = self.scale = None
        if dynamic:
            self.weight = nn.Parameter(torch.zeros(n_sublayers, width, columns))
            self.scale = nn.Parameter(torch.full((n_sublayers, 2), 0.01))
            self.gain = nn.Parameter(torch.ones(n_sublayers, width))

    def each(self) -> Sequence[Own]:
        own, columns = self.static.unbind(), self.static.shape[-1]
        if self.weight is None or self.gain is None or self.scale is None:
            return [Own(None, (rows,)) for rows in own]
        first, last = self.scale.split(1, dim=-1)
        scale = torch.cat((first.expand(-1, columns - 1), last), dim=-1)
        weight = self.weight * self.gain.unsqueeze(-1)  # RMSNorm's gain, which changes no number
        rest = zip(own, scale.unbind(), strict=True)
        return [Own(*each) for each in zip(weight.unbind(), rest, strict=True)]

    def made(self, z: Tensor | None, *own: Tensor) -> tuple[Maps, tuple[Tensor, ...]]:
        rows, kept = own[0].t().unsqueeze(1), []  # (K, tokens, n)
        if z is not None:
            kept.append(z.tanh().unflatten(1, (-1, rows.shape[-1])))
            rows = torch.addcmul(rows, own[1].view(-1, 1, 1), kept[0])
        return Maps(rows[:-1].transpose(0, 1), rows[-1].unsqueeze(-1)), tuple(kept)

    def slopes(
        self, g: Maps, z: Tensor | None, kept: Sequence[Tensor], *own: Tensor
    ) -> tuple[Tensor | None, ...]:
        rows = torch.cat((g.sums.transpose(0, 1), g.write.movedim(-1, 0)))
        if z is None:
            return None, rows.sum(dim=1).t()
        (tanh,), (_, scale) = kept, own
        dz = torch.ops.aten.tanh_backward(rows * scale.view(-1, 1, 1), tanh)
        return dz.flatten(1), rows.sum(dim=1).t(), (rows * tanh).sum(dim=(1, 2))
