"""What each key of a recipe means, what it takes, and which choice reads it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from attnres_cli.config.recipe import Recipe
from attnres_cli.config.sections import READ_BY, READ_BY_MODEL, Data
from attnres_cli.errors import UsageError, unknown

_TYPES = {int: "whole number", float: "number", bool: "true or false", str: "text"}
_MAPPINGS = ("arms", "regret", "optim.part_lr_scale")  # which are held as pairs
_READ_BESIDE = {
    "optim.decay_fraction": "optim.schedule: wsd",
    "optim.base": "optim.transfer: mup, completep",
    "train.pipeline.stages": "train.parallel: pipeline",
    "train.pipeline.virtual": "train.parallel: pipeline",
    "train.pipeline.schedule": "train.parallel: pipeline",
}

MEANINGS = {
    "name": "What reports call the recipe. Default: the file's name.",
    "description": "What the recipe is for, in a line.",
    "variants": "Arms to compare if none are typed.",
    "margin": "Largest difference that does not matter: nats per token (0.01) or compute (1.05x).",
    "ladder": "Sizes to train one after the other: what each changes.",
    "slope": "Measured: how much lower the baseline ends with more tokens.",
    "regret": "Measured: what tuning may have missed, by design. `ablate --tune-lr` writes it.",
    "arms": "Settings of `optim` by design.",
    "model.n_layers": "Transformer layers: an attention and an MLP each.",
    "model.d_model": "Width.",
    "model.n_heads": "Attention heads.",
    "model.n_kv_heads": "Heads of keys and values. Unset: n_heads.",
    "model.d_head": "Width of a head. Unset: d_model / n_heads.",
    "model.d_ff": "Width of the MLP, or of an expert. Unset: 8/3 d_model over a token's experts; "
    "4 d_model without a gate.",
    "model.seq_len": "Tokens in a sequence.",
    "model.attention": "Kind of attention, or a list that repeats over the layers.",
    "model.d_latent": "Width of the latent of keys and values. Unset: 4 d_head.",
    "model.positions": "How attention knows positions; none: it does not.",
    "model.mlp": "Kind of MLP, or a list that repeats over the layers.",
    "model.n_experts": "Experts of a layer beside the shared ones. Unset: 8.",
    "model.top_k": "Experts that a token uses beside the shared ones. Unset: 2.",
    "model.n_shared_experts": "Experts that every token uses. Unset: 1.",
    "model.tie_embeddings": "Whether the head's weights are those of the embedding.",
    "model.qk_norm": "Whether the queries and keys of each head are normalized.",
    "model.softcap": "Bounds logits: softcap tanh(logit / softcap). Unset: no bound.",
    "model.rope_theta": "Base of the rotary frequencies.",
    "model.norm_eps": "What norms add under the root.",
    "data.source": "Where tokens come from.",
    "data.edition": "Which edition of the text; 2 leaves out files that programs wrote. Unset: 1.",
    "data.deduplicate": "Keep each document once, and near-duplicates in one part.",
    "data.path": "File, folder or pattern of files; for huggingface, a name or a saved data set.",
    "data.val_path": "What validates. Unset: a part of path.",
    "data.val_fraction": "Share that validates, where no other key says what does.",
    "data.tokenizer": "FILE.json or tiktoken:NAME. Unset: bytes.",
    "data.separator": "Text between documents. Unset: the tokenizer's end of text, or a newline. "
    "Of token files, the number of the token that ends a document.",
    "data.documents": "isolated: no token attends to another document.",
    "data.vocab_size": "Size of the vocabulary. Unset: read from short files.",
    "data.dtype": "Type of a token in files. Unset: uint32 if vocab_size needs it.",
    "data.subset": "Configuration of the data set.",
    "data.split": "Split that trains.",
    "data.val_split": "Split that validates. Unset: validation, else test, else a part.",
    "data.column": "Column that holds the text.",
    "data.rows": "How many rows to read. Unset: all.",
    "data.streaming": "Whether rows are read as they download.",
    "data.nodes": "Nodes that point to one another.",
    "data.hops": "A query follows 1 to this many pointers.",
    "data.degree": "Elements that are permuted: degree! tokens.",
    "data.length": "Products of 1 to this many permutations.",
    "data.pairs": "Pairs of key and value in a sequence.",
    "data.keys": "Keys that there are.",
    "data.values": "Values that there are.",
    "optim.optimizer": "muon trains the matrices inside sublayers, and AdamW the rest.",
    "optim.lr": "Highest learning rate.",
    "optim.design_lr_scale": "Learning rate of what a design adds, as a multiple of lr.",
    "optim.part_lr_scale": "The same of single streams and add-ons: `{x0: 30}`, times "
    "design_lr_scale.",
    "optim.transfer": "How lr, tuned at `optim.base`, serves other widths (mup), and depths too "
    "(completep).",
    "optim.base": "The size at which lr was tuned: `{d_model: 64, n_layers: 4}`.",
    "optim.beta1": "AdamW's decay of the mean gradient.",
    "optim.beta2": "AdamW's decay of the mean square.",
    "optim.eps": "What AdamW adds to the root.",
    "optim.weight_decay": "Decoupled weight decay of the trunk's matrices, not of the embedding.",
    "optim.clip": "Largest norm of the gradient.",
    "optim.schedule": "How lr falls: cosine from the warm-up on, or wsd in the last steps.",
    "optim.warmup_fraction": "Share of the steps in which lr rises.",
    "optim.decay_fraction": "Share of the steps, at the end, in which lr falls.",
    "optim.final_lr_fraction": "Where lr ends, as a multiple of lr.",
    "train.tokens": "Tokens to train on, rounded down to whole steps.",
    "train.batch_size": "Sequences per step.",
    "train.micro_batch_size": "Sequences in memory at a time. Unset: batch_size.",
    "train.checkpoint_activations": "Keep less of each sublayer, and compute it twice.",
    "train.eval_tokens": "Tokens of an evaluation.",
    "train.n_evals": "Evaluations, evenly spaced, the last one at the end.",
    "train.precision": "auto: bf16 on a GPU that has it, else fp32.",
    "train.compile": "on: torch.compile; graphs: with CUDA graphs; auto: what the run pays for.",
    "train.parallel": "How the ranks of torchrun share a run. auto: ddp.",
    "train.pipeline.stages": "Parts that the model is cut into. Unset: one for each rank.",
    "train.pipeline.virtual": "Chunks of sublayers in each stage.",
    "train.pipeline.schedule": "auto: 1f1b, or interleaved1f1b with several chunks.",
}
"""By key. A key of the schema that is missing here fails tests/config/test_keys.py."""


@dataclass(frozen=True)
class Key:
    """A key of a recipe, as `--set` takes it. `default` is empty where it is required, and `unset`
    where None is; `read_with` is the choice that it means something to, empty for any.
    """

    name: str
    meaning: str
    type: str
    default: str
    read_with: str


def keys(prefix: str = "") -> list[Key]:
    """All keys that begin so, in the order of the schema. Raises UsageError where none does."""
    every = list(_keys("", Recipe))
    found = [key for key in every if key.name.startswith(prefix)]
    if not found:
        raise UsageError(f"--keys: {unknown('key', prefix, [key.name for key in every])}")
    return found


def _keys(section: str, of: type[BaseModel]) -> Iterator[Key]:
    for name, about in of.model_fields.items():
        key, kind = section + name, about.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _keys(f"{key}.", kind)
            continue
        readers = _readers(section, name)
        source = readers.removeprefix("data.source: ").partition(", ")[0]
        default = about.default
        if section == "data." and readers:
            default = getattr(Data.model_validate({"source": source}), name)
        taken = "mapping" if key in _MAPPINGS else _type(kind)
        yield Key(key, MEANINGS.get(key, ""), taken, _default(default), readers)


def _readers(section: str, name: str) -> str:
    """`data.source: text, huggingface`; empty where every choice reads it."""
    choices = {"data.": {"source": READ_BY}, "model.": READ_BY_MODEL}.get(section, {})
    for choice, by in choices.items():
        if readers := [reader for reader, read in by.items() if name in read]:
            return f"{section}{choice}: {', '.join(readers)}"
    return _READ_BESIDE.get(section + name, "")


def _type(kind: Any) -> str:
    """`whole number`; `adamw or muon`; `list of text`."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _type(inner[0])
    if origin is Literal:
        return " or ".join(map(str, inner))
    if origin is tuple:
        return "list" if len(inner) != 2 or inner[1] is not ... else _list_of(inner[0])
    if inner:
        return " or ".join(dict.fromkeys(_type(each) for each in inner if each is not NoneType))
    return _TYPES.get(kind, "mapping")


def _list_of(kind: Any) -> str:
    return "list of text" if kind is str else "list"


def _default(value: object) -> str:
    if value is PydanticUndefined:
        return ""
    if value is None or value in ((), ""):
        return "unset"
    return str(value).lower() if isinstance(value, bool) else str(value)
