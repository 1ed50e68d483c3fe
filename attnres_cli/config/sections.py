"""The sections of a recipe: model, data, optim, train. What people write passes here."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator

from attnres_cli.config.reading import (
    Count,
    Fraction,
    Readers,
    Section,
    Size,
    as_pairs,
    kinds,
    on_or_off,
    refuse_unread,
    text_of_path,
)
from attnres_cli.config.reading import parse_count as parse_count
from attnres_cli.nn.shape import Attention, Mlp, Positions, Shape

READ_BY_MODEL: dict[str, Readers] = {
    "attention": {"softmax": ("n_kv_heads", "qk_norm"), "mla": ("d_latent",)},
    "mlp": {"moe": ("n_experts", "top_k", "n_shared_experts")},
    "positions": {"rope": ("rope_theta",)},
}


class Model(Section):
    """The trunk. What is left out follows from the rest; see `shape`.

    attention and mlp are one kind, or a pattern that repeats over the layers. positions none: no
    attention knows any.
    """

    n_layers: Annotated[Count, Field(le=1000)]  # a history has n_layers^2 reads
    d_model: Annotated[Size, Field(le=2**17)]  # proofs of a design run at this width
    n_heads: Size
    n_kv_heads: Size | None = None  # None: n_heads
    d_head: Size | None = None  # None: d_model / n_heads
    d_ff: Size | None = None  # None: 8/3 d_model over a token's experts, 4 d_model without a gate
    seq_len: Size
    attention: Annotated[Attention | tuple[Attention, ...], kinds(get_args(Attention))] = "softmax"
    d_latent: Size | None = None  # None: 4 d_head, as DeepSeek-V2's
    positions: Positions = "rope"
    mlp: Annotated[Mlp | tuple[Mlp, ...], kinds(get_args(Mlp))] = "swiglu"
    n_experts: Size | None = None  # of one layer, beside the shared ones; None: 8
    top_k: Size | None = None  # of them that a token uses; None: 2
    n_shared_experts: Annotated[int | None, Field(ge=0, le=2**24)] = None  # None: 1
    tie_embeddings: bool = False
    qk_norm: bool = False  # of each head's queries and keys
    softcap: Annotated[float, Field(gt=0)] | None = None  # of logits: softcap tanh(logit / softcap)
    rope_theta: Annotated[float, Field(gt=1)] = 10_000.0
    norm_eps: Annotated[float, Field(gt=0)] = 1e-6

    @model_validator(mode="after")
    def _sizes_fit(self) -> Model:
        shape = self.shape(vocab_size=1)
        positions = (shape.positions,)
        chosen = {"attention": shape.attentions, "mlp": shape.mlps, "positions": positions}
        for choice, by in READ_BY_MODEL.items():
            refuse_unread(self, choice, chosen[choice], by)
        return self

    def shape(self, vocab_size: int) -> Shape:
        """All sizes, given how many tokens the data has; ValueError where they clash."""
        if self.d_head is None and self.d_model % self.n_heads:
            raise ValueError(
                f"d_model must be a multiple of n_heads (or give d_head), got {self.d_model} "
                f"and {self.n_heads}"
            )
        given = self.model_dump(exclude_none=True)
        mlps = (self.mlp,) if isinstance(self.mlp, str) else self.mlp
        if "moe" in mlps:
            given = {"n_experts": 8, "top_k": 2, "n_shared_experts": 1} | given
        n_used = max(1, given.get("top_k", 0) + given.get("n_shared_experts", 0))
        gated = 8 * math.ceil(self.d_model / 3 / n_used)
        d_head = self.d_head or self.d_model // self.n_heads
        found: dict[str, Any] = {
            "n_kv_heads": self.n_heads,
            "d_head": d_head,
            "d_ff": gated if {*mlps} - {"gelu", "relu2"} else 4 * self.d_model,
            "d_latent": 4 * d_head if "mla" in self.attention else 0,
        }
        return Shape(**(found | given), vocab_size=vocab_size)

    def active(self, n_params: int) -> int:
        """Of a model's parameters those that a token uses: not of experts it is not routed to."""
        shape = self.shape(vocab_size=1)
        return n_params - shape.n_params() + shape.n_active_params()


TEXTS = ("stdlib", "text", "huggingface")
"""Sources of text; others hold tokens, whose bytes say nothing of a text."""

READ_BY: Readers = {
    "stdlib": ("tokenizer", "edition"),
    "text": (
        "path", "val_path", "tokenizer", "separator", "documents", "deduplicate", "column", "split",
        "val_split",
    ),
    "nanogpt": ("path", "val_path", "vocab_size", "separator", "documents", "dtype"),
    **dict.fromkeys(
        ("llmc", "megatron", "npy"), ("path", "val_path", "vocab_size", "separator", "documents")
    ),
    "huggingface": (
        "path", "tokenizer", "separator", "documents", "subset", "split", "val_split", "column",
        "rows", "streaming", "deduplicate",
    ),
    "pointers": ("nodes", "hops"),
    "permutations": ("degree", "length"),
    "recall": ("pairs", "keys", "values"),
}  # fmt: skip
"""Keys that mean something to some sources only."""

_FILLED_IN: dict[str, dict[str, Any]] = {
    "huggingface": {"split": "train", "column": "text"},
    "pointers": {"nodes": 8, "hops": 4},
    "permutations": {"degree": 4, "length": 4},
    "recall": {"pairs": 8, "keys": 32, "values": 32},
}
"""What such a key is where a recipe does not say; a key of another source stays None."""


class Data(Section):
    """Where tokens come from.

    stdlib: the source of the running Python, in edition 2 without files that programs wrote. text:
    a file or folder, of texts or of rows with a column of text. nanogpt, llmc, megatron, npy: token
    files, a folder of them or a pattern such as shards/*.bin. huggingface: a dataset by name or
    saved to disk. pointers, permutations, recall: tasks that are generated (data/synthetic.py).
    """

    source: Literal[
        "stdlib", "text", "nanogpt", "llmc", "megatron", "npy", "huggingface", "pointers",
        "permutations", "recall",
    ] = "stdlib"  # fmt: skip
    edition: Annotated[int, Field(ge=1, le=2)] | None = None  # of stdlib; None: the first
    deduplicate: bool | None = None  # each document once, near-duplicates on one side
    path: Annotated[str | None, BeforeValidator(text_of_path)] = None
    val_path: Annotated[str | None, BeforeValidator(text_of_path)] = None  # else a part of path
    val_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.05  # where `is_divided`
    tokenizer: str | None = None  # None: bytes. FILE.json, or tiktoken:NAME
    separator: Annotated[str | None, BeforeValidator(text_of_path)] = None
    """Between documents; None: data/tokenizers.py says; or none. Of token files, the number of the
    token that ends a document: read where they are isolated.
    """
    documents: Literal["joined", "isolated"] = "joined"  # whether tokens attend across separators
    vocab_size: Annotated[Count, Field(le=2**24)] | None = None  # None: found in short files
    dtype: Literal["uint16", "uint32"] | None = None  # None: uint32 where vocab_size needs it
    subset: str | None = None  # the dataset's configuration
    split: str | None = None
    val_split: str | None = None
    column: str | None = None  # that holds the text
    rows: Count | None = None  # None: all
    streaming: bool | None = None
    nodes: Annotated[Count, Field(ge=2, le=4096)] | None = None
    hops: Annotated[Count, Field(le=4096)] | None = None  # a query follows 1 to this many
    degree: Annotated[Count, Field(ge=2, le=6)] | None = None  # degree! tokens
    length: Annotated[Count, Field(le=256)] | None = None  # products of 1 to this many
    pairs: Annotated[Count, Field(ge=2, le=65536)] | None = None
    keys: Annotated[Count, Field(le=65536)] | None = None
    values: Annotated[Count, Field(ge=2, le=65536)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        source = values.get("source")
        defaults = _FILLED_IN.get(source, {}) if isinstance(source, str) else {}
        given = {k: v for k, v in values.items() if not (v is None and k in defaults)}
        return defaults | given

    @model_validator(mode="after")
    def _keys_are_read(self) -> Data:
        refuse_unread(self, "source", (self.source,), READ_BY)
        if self.pairs is not None and self.keys is not None and self.keys < self.pairs:
            raise ValueError(
                f"recall asks for {self.pairs} pairs with different keys, got {self.keys} keys; "
                f"--set data.keys={2 * self.pairs}"
            )
        if self.separator is not None and self.source not in TEXTS:
            if self.documents == "joined":
                raise ValueError(
                    "separator of token files is read with documents: isolated; add --set "
                    "data.documents=isolated"
                )
            if not (self.separator.isascii() and self.separator.isdigit()):
                raise ValueError(
                    "separator of token files is the number of a token, such as 50256, got "
                    f"'{self.separator}'"
                )
        return self

    @property
    def is_divided(self) -> bool:
        """Whether val_fraction is read: no other key says what validates, though file names may."""
        given = self.val_path is not None or self.val_split is not None
        return not given and self.source not in ("pointers", "permutations", "recall")

    def fixed(self) -> dict[str, Any]:
        """What a recipe's digest sees: all that is set, but for places (of val_path whether it is
        set) and for what is seen in the tokens alone, as separators of joined documents are.
        """
        held = self.model_dump(exclude={"path", "val_path"}, exclude_none=True)
        if self.documents == "joined":
            del held["documents"]
            held.pop("separator", None)
        if self.edition == 1:
            del held["edition"]
        if not self.deduplicate:
            held.pop("deduplicate", None)
        return held | ({} if self.val_path is None else {"val_path": True})


Scale = Annotated[float, Field(gt=0, le=1e6)]


class Base(Section):
    """The size of the model at which a learning rate was tuned."""

    d_model: Size
    n_layers: Size


class Optim(Section):
    """lr rises over warmup_fraction of the steps, then falls to final_lr_fraction of lr. What a
    design adds is trained at design_lr_scale times that; of this, parts of composed designs at
    part_lr_scale times.

    optimizer muon: torch's own for the matrices inside of sublayers, AdamW for all else and for all
    that a design adds, at the same lr: muon's updates are scaled to the size of AdamW's.

    transfer mup, completep: lr is that of a model of the size `base`, and serves other widths, or
    widths and depths, by nn/transfer.py.
    """

    _LATER = ("optimizer", "design_lr_scale", "part_lr_scale", "transfer", "base")

    optimizer: Literal["adamw", "muon"] = "adamw"
    lr: Annotated[float, Field(gt=0)]
    design_lr_scale: Scale = 1.0
    part_lr_scale: Annotated[tuple[tuple[str, Scale], ...], BeforeValidator(as_pairs)] = ()
    transfer: Literal["none", "mup", "completep"] = "none"
    base: Base | None = None
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    eps: Annotated[float, Field(gt=0)] = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    clip: Annotated[float, Field(gt=0)] = 1.0
    schedule: Literal["cosine", "wsd"] = "cosine"
    warmup_fraction: Fraction = 0.05
    decay_fraction: Fraction = 0.2  # wsd: the last steps, in which lr falls
    final_lr_fraction: Fraction = 0.1

    @model_validator(mode="after")
    def _base_is_known(self) -> Optim:
        if (self.transfer == "none") != (self.base is None):
            missing = "base.d_model=64 and --set optim.base.n_layers=4" if self.base is None else ""
            raise ValueError(
                "transfer and base go together, the size at which lr was tuned: --set optim."
                + (missing or "transfer=completep")
            )
        return self


class Pipeline(Section):
    """How train.parallel=pipeline cuts a model: stages are ranks, by default all there are, each of
    `virtual` chunks of sublayers. schedule auto: 1f1b, interleaved1f1b of several.
    """

    stages: Count | None = None
    virtual: Size = 1
    schedule: str = "auto"

    def named(self) -> str:
        """The schedule by its name in lower case."""
        auto = "interleaved1f1b" if self.virtual > 1 else "1f1b"
        return auto if self.schedule == "auto" else self.schedule.lower()


class Train(Section):
    """How long and how. Tokens are rounded down to whole steps of batch_size x seq_len.

    precision auto: bf16 on CUDA devices that have it, else fp32. compile on: by torch.compile;
    graphs: and replayed as CUDA graphs; auto: what pays for a run (train/device.py has the rule).
    A batch that does not fit into memory goes through the model in parts of micro_batch_size
    sequences, or keeps less of each sublayer with checkpoint_activations, which computes its
    forward pass twice.

    parallel is how ranks that torchrun has started share a run, auto: ddp. It changes how a run is
    computed, not what it is: neither it nor pipeline is part of the digest.
    """

    _LATER = ("micro_batch_size", "checkpoint_activations")

    tokens: Count
    batch_size: Size  # sequences per step
    micro_batch_size: Count | None = None  # sequences at a time; None: batch_size
    checkpoint_activations: bool = False
    eval_tokens: Count
    n_evals: Size = 4  # evaluations, evenly spaced, the last one at the end
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    compile: Annotated[Literal["auto", "on", "graphs", "off"], BeforeValidator(on_or_off)] = "auto"
    parallel: Literal["auto", "none", "ddp", "fsdp", "pipeline"] = "auto"
    pipeline: Pipeline = Pipeline()

    @model_validator(mode="after")
    def _micro_batches_are_equal(self) -> Train:
        if self.batch_size % self.rows:
            fitting = math.gcd(self.batch_size, self.rows)
            raise ValueError(
                f"micro_batch_size must divide batch_size {self.batch_size}, got {self.rows}; "
                f"--set train.micro_batch_size={fitting}"
            )
        return self

    @property
    def rows(self) -> int:
        """Sequences that go through the model at a time."""
        return self.micro_batch_size or self.batch_size

    def of_rank(self, ranks: int) -> Train:
        """What one of so many ranks does: its share of each batch, in micro-batches as large as go
        evenly, at most those of one device. The ranks divide the batch.
        """
        if ranks == 1:
            return self
        share = self.batch_size // ranks
        rows = max(n for n in range(1, min(self.rows, share) + 1) if share % n == 0)
        return self.model_copy(update={"batch_size": share, "micro_batch_size": rows})

    def fixed(self) -> dict[str, Any]:
        """What a recipe's digest sees: not by how many devices it is computed."""
        how = ("parallel", "pipeline")
        return {key: value for key, value in super().fixed().items() if key not in how}
