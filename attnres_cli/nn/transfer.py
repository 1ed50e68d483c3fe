"""Transfer: what a model takes over from a smaller one, so that a rate tuned there serves it too.

Symbols: w its width by that of the base, d its depth by that of the base, a the design's
`depth_exponent`, b and c what its `rate_falls` says of a parameter, eta the recipe's learning rate,
s and eps what the base has.

| parameter                     | initial sd        | rate          | AdamW's epsilon  |
|-------------------------------|-------------------|---------------|------------------|
| embedding, output norm        | s                 | eta           | eps / w          |
| norms inside of sublayers     | s                 | eta           | eps / (w d)      |
| matrices of sublayers         | s w^-1/2          | eta / w       | eps / (w d)      |
| of these `out`                | s w^-1/2 d^-a     | eta / w d^-a  | eps / (w d) d^a  |
| head                          | s / w             | eta / w       | eps              |
| of a design                   | the design's      | eta w^-b d^-c | eps / (w d)      |

Muon's updates of a matrix have a norm that grows with the root of its width: eta / sqrt(w). Weight
decay is divided by what the rate is multiplied by, so that a step decays as much as at the base.
mup has d = 1: the width alone. The factors w^-1 on logits and d^-a on outputs of sublayers, which
the papers have in the forward pass, stand in sd, rate and epsilon: AdamW then takes the same steps
(Yang and Hu 2021, arXiv 2011.14522, symmetries of abc-parametrizations), and the trunk is the same.

Sources: Yang et al. 2022, muP (arXiv 2203.03466); Dey et al. 2025, CompleteP (arXiv 2505.01618,
table 1), where a = 1.
Differences: scores are scaled by 1 / sqrt(d_head) as ever, not by 1 / d_head: a wider model should
have more heads, not larger ones. Gradients are clipped by their common norm, in which weights with
a factor inside count otherwise than in the papers.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from attnres_cli.errors import VariantError
from attnres_cli.nn.residual import Norms, Residual
from attnres_cli.nn.shape import Shape
from attnres_cli.nn.trunk.kind import is_out


class Factors(NamedTuple):
    """What a parameter's rate and AdamW's epsilon are multiplied by."""

    rate: float
    eps: float


class Transfer(NamedTuple):
    """How many times as wide, and as deep, as the base a model is."""

    width: float
    depth: float

    def sublayers(self, residual: Residual) -> float:
        """The number of sublayers by which initial values of `out` are made: sd n^-1/2."""
        return residual.n_sublayers * self.depth ** (2 * residual.depth_exponent - 1)

    def factors(self, name: str, p: nn.Parameter, residual: Residual, *, muon: bool) -> Factors:
        """Of a parameter, by its name in the model."""
        section, _, inner = name.partition(".")
        within = self.width * self.depth
        matrix = self.width ** -(0.5 if muon else 1.0)
        if section in ("embed", "norm"):
            return Factors(1.0, 1 / self.width)
        if section == "head":
            return Factors(1 / self.width, 1.0)
        if section == "residual":
            b, c = falls(residual, inner)
            return Factors(self.width**-b * self.depth**-c, 1 / within)
        if p.ndim == 1:
            return Factors(1.0, 1 / within)
        branch = self.depth**-residual.depth_exponent if is_out(name) else 1.0
        return Factors(matrix * branch, 1 / (within * branch))


def falls(residual: Residual, name: str) -> tuple[float, float]:
    """With which powers of width and depth the rate of a design's parameter falls."""
    said = {own: powers for own, *powers in residual.rate_falls}
    b, c = said.get(name) or said.get(name.rpartition(".")[0]) or (0, 0)
    return b, c


def undefined(shape: Shape) -> str:
    """Why the table above says nothing of a trunk, and what to type; empty where it does."""
    if closed := sorted(set(shape.attentions) - {"softmax"}):
        return (
            f"optim.transfer is defined for model.attention=softmax, got {' and '.join(closed)}: "
            "--set optim.transfer=none"
        )
    if shape.tie_embeddings:
        return (
            "optim.transfer needs an embedding and a head of their own: "
            "--set model.tie_embeddings=off"
        )
    return ""


def check(residual: Residual, shape: Shape, *, over_depth: bool) -> None:
    """Raise VariantError for a trunk or a design for which the table above says nothing."""
    if reason := undefined(shape):
        raise VariantError(reason)
    if over_depth and residual.norms is Norms.PRE_AND_POST:
        raise VariantError(
            f"{type(residual).__name__} normalizes what sublayers put out, which leaves no size to "
            "scale with the depth: --set optim.transfer=mup"
        )
