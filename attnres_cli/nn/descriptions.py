"""What is found out about a design: frozen dataclasses, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """What came of one proof; `detail` is empty where it passed."""

    proof: str
    outcome: Literal["passed", "failed", "not applicable"]
    detail: str = ""


@dataclass(frozen=True)
class Description:
    """A design with its options, in a trunk of some size.

    Attributes:
        n_params: what it adds, and `trunk_params` what there is besides, embedding and head aside.
        extra_flops: forward FLOPs per token beyond `standard`, and `trunk_flops` those of standard.
        extra_bytes: forward reads and writes per token beyond `standard`'s residual, in bfloat16.
        equals_standard: at step 0, as it claims and as the findings prove.
        mixing: for each site, the weight of each output at step 0, a mean over the width.
        joined: for each of these, whether it shares a learned weight with the output before it.
        not_linear: why there is no such table; empty where there is.
        findings: of the quick proofs, on a small trunk.
    """

    spec: str
    n_layers: int
    d_model: int
    n_params: int
    trunk_params: int
    extra_flops: int
    trunk_flops: int
    extra_bytes: int
    equals_standard: bool
    mixing: Sequence[Sequence[float]] | None
    joined: Sequence[Sequence[bool]] | None
    not_linear: str
    findings: Sequence[Finding]
