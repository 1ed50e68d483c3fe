"""Recipe: all that is held fixed between arms. Strict, frozen; what people write passes here."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from decimal import Decimal
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from attnres_cli import strict_yaml
from attnres_cli.errors import RecipeError, unknown
from attnres_cli.shape import Mlp, Shape

_PAPER = "paper.yaml"  # lies beside the recipes and is none
_COUNT = re.compile(r"([-+]?\d{1,12}(?:\.\d{1,12})?)([kMB])")
_SUFFIX = {"k": 10**3, "M": 10**6, "B": 10**9}


def parse_count(value: object) -> object:
    """1.5k -> 1500, 2M -> 2000000; anything that is not such a text is returned as it came."""
    if isinstance(value, str) and (match := _COUNT.fullmatch(value)):
        count = Decimal(match[1]) * _SUFFIX[match[2]]
        return int(count) if count == count.to_integral_value() else value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _word(value: object) -> object:
    """The words on and off, which YAML reads as booleans, where a choice has them."""
    return ("off", "on")[value] if isinstance(value, bool) else value


def _path(value: object) -> object:
    """A folder's name may be a number, which YAML reads as one."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


Count = Annotated[int, BeforeValidator(parse_count), Field(gt=0, lt=2**53)]
Fraction = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """Unknown keys and wrong types are refused, nothing can be changed afterwards."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Model(Section):
    """The trunk. What is left out follows from the rest; see `shape`."""

    n_layers: Annotated[Count, Field(le=1000)]  # a history has n_layers^2 reads
    d_model: Count
    n_heads: Count
    n_kv_heads: Count | None = None  # None: n_heads
    d_head: Count | None = None  # None: d_model / n_heads
    d_ff: Count | None = None  # None: 8/3 d_model for swiglu, 4 d_model for gelu
    seq_len: Count
    mlp: Mlp = "swiglu"
    tie_embeddings: bool = False
    rope_theta: Annotated[float, Field(gt=1)] = 10_000.0
    norm_eps: Annotated[float, Field(gt=0)] = 1e-6

    @model_validator(mode="after")
    def _sizes_fit(self) -> Model:
        self.shape(vocab_size=1)
        return self

    def shape(self, vocab_size: int) -> Shape:
        """All sizes, given how many tokens the data has.

        Raises:
            ValueError: sizes that clash.

        """
        if self.d_head is None and self.d_model % self.n_heads:
            raise ValueError(
                f"d_model must be a multiple of n_heads (or give d_head), got {self.d_model} "
                f"and {self.n_heads}"
            )
        wide = 4 * self.d_model if self.mlp == "gelu" else 8 * math.ceil(self.d_model / 3)
        return Shape(
            n_layers=self.n_layers,
            d_model=self.d_model,
            n_heads=self.n_heads,
            n_kv_heads=self.n_kv_heads or self.n_heads,
            d_head=self.d_head or self.d_model // self.n_heads,
            d_ff=self.d_ff or wide,
            vocab_size=vocab_size,
            seq_len=self.seq_len,
            mlp=self.mlp,
            tie_embeddings=self.tie_embeddings,
            rope_theta=self.rope_theta,
            norm_eps=self.norm_eps,
        )


class Data(Section):
    """Where tokens come from: `stdlib` (the running Python's own source) or `text` (data.path)."""

    source: Literal["stdlib", "text"] = "stdlib"
    path: Annotated[str | None, BeforeValidator(_path)] = None
    val_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.05

    @model_validator(mode="after")
    def _path_is_read(self) -> Data:
        if self.path is not None and self.source != "text":
            raise ValueError(
                f"path is read with source: text, got source: {self.source}; add "
                "--set data.source=text"
            )
        return self


class Optim(Section):
    """AdamW; lr rises over warmup_fraction of the steps, then falls to final_lr_fraction of lr."""

    lr: Annotated[float, Field(gt=0)]
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    eps: Annotated[float, Field(gt=0)] = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    clip: Annotated[float, Field(gt=0)] = 1.0
    schedule: Literal["cosine", "wsd"] = "cosine"
    warmup_fraction: Fraction = 0.05
    decay_fraction: Fraction = 0.2  # wsd: the last steps, in which lr falls
    final_lr_fraction: Fraction = 0.1


class Train(Section):
    """How long and how. Tokens are rounded down to whole steps of batch_size x seq_len.

    precision auto: bf16 on CUDA devices that have it, else fp32. compile auto: where the run is
    long enough to pay for it (train/device.py has the rule).
    """

    tokens: Count
    batch_size: Count  # sequences per step
    eval_tokens: Count
    n_evals: Count = 4  # evaluations, evenly spaced, the last one at the end
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    compile: Annotated[Literal["auto", "on", "off"], BeforeValidator(_word)] = "auto"


class Recipe(Section):
    """One recipe; `digest` says whether two recipes hold the same things fixed."""

    name: str = ""
    description: str = ""
    variants: Annotated[tuple[str, ...], BeforeValidator(_tuple)] = ()  # arms, if none are typed
    model: Model
    data: Data = Data()
    optim: Optim
    train: Train

    @model_validator(mode="after")
    def _a_step_fits(self) -> Recipe:
        if self.train.tokens < self.tokens_per_step:
            raise ValueError(
                f"train.tokens must be at least one step of {self.tokens_per_step} tokens "
                f"(train.batch_size x model.seq_len), got {self.train.tokens}"
            )
        if self.train.eval_tokens < self.model.seq_len:
            raise ValueError(
                f"train.eval_tokens must be at least model.seq_len {self.model.seq_len}, "
                f"got {self.train.eval_tokens}"
            )
        return self

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimiser step."""
        return self.train.batch_size * self.model.seq_len

    @property
    def steps(self) -> int:
        """Optimiser steps of one run."""
        return self.train.tokens // self.tokens_per_step

    @property
    def digest(self) -> str:
        """12 hex digits over all that decides a run. Where the data lie does not: their
        fingerprint does.
        """
        fixed = self.model_dump(include={"data", "optim", "train"}, exclude={"data": {"path"}})
        fixed["model"] = asdict(self.model.shape(vocab_size=1))  # however its sizes were given
        canonical = json.dumps(fixed, sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def names() -> list[str]:
    """The recipes that come with the tool."""
    yaml = [p.name for p in _shipped() if p.name.endswith(".yaml") and p.name != _PAPER]
    return sorted(name.removesuffix(".yaml") for name in yaml)


def text_of(name: str) -> str:
    """The YAML of a recipe, by the name of a shipped one or by path.

    Raises:
        RecipeError: an unknown name, a missing file, a file that is no text.

    """
    if "/" not in name and not name.endswith((".yaml", ".yml")):
        if name not in names():
            raise RecipeError(unknown("recipe", name, names()) + ", or a path to a .yaml file")
        return (files("recipes") / f"{name}.yaml").read_text(encoding="utf-8")
    path = Path(name).expanduser()
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise RecipeError(f"recipe {path} is no file")  # a pipe could be read for ever
        if path.stat().st_size > strict_yaml.MAX_BYTES:
            raise RecipeError(
                f"recipe {path}: {path.stat().st_size} bytes, at most {strict_yaml.MAX_BYTES} "
                "are read: is it a recipe?"
            )
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise RecipeError(f"recipe {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"recipe {path} is not UTF-8 text") from error


def load(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of that name or path, with `section.key=value` overrides on top.

    Raises:
        RecipeError: with file, key, value and what is allowed.

    """
    origin = f"recipe {name}"
    values = strict_yaml.load(text_of(name), origin)
    if not isinstance(values, dict):
        raise RecipeError(f"{origin}: expected sections model, data, optim, train, found none")
    for override in overrides:
        _override(values, override)
        origin = f"recipe {name} with --set"
    values.setdefault("name", Path(name).stem)
    return validate(values, origin)


def validate(values: Mapping[str, Any], origin: str) -> Recipe:
    """The recipe that these values make.

    Raises:
        RecipeError: the first thing wrong with them, and how many more there are.

    """
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        # a misspelt key first: it is why another one is missing
        first, *more = sorted(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
        rest = f" (and {len(more)} more)" if more else ""
        raise RecipeError(f"{origin}: {_explain(first)}{rest}") from None


def suite(name: str) -> list[str]:
    """The specs of a suite of variants that comes with the tool.

    Raises:
        RecipeError: an unknown suite, with the nearest known one.

    """
    if name not in suite_names():
        raise RecipeError(unknown("suite", name, suite_names()))
    text = (files("recipes") / "suites" / f"{name}.yaml").read_text(encoding="utf-8")
    return list(strict_yaml.load(text, f"suite {name}")["variants"])


def suite_description(name: str) -> str:
    """What a suite is for, in a line."""
    text = (files("recipes") / "suites" / f"{name}.yaml").read_text(encoding="utf-8")
    return str(strict_yaml.load(text, f"suite {name}")["description"])


def paper() -> dict[str, Any]:
    """The losses that the Attention Residuals paper prints: `table4` (with Fig. 6) by spec,
    `table2` by size and spec.
    """
    text = (files("recipes") / _PAPER).read_text(encoding="utf-8")
    found: dict[str, Any] = strict_yaml.load(text, _PAPER)
    return found


def suite_names() -> list[str]:
    """The suites that come with the tool."""
    suites = (files("recipes") / "suites").iterdir()
    return sorted(p.name.removesuffix(".yaml") for p in suites if p.name.endswith(".yaml"))


def _shipped() -> list[Any]:
    return list(files("recipes").iterdir())


def _override(values: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    *sections, key = path.strip().split(".")
    if not equals or not key:
        raise RecipeError(f"--set takes section.key=value, got '{override}'")
    inner = values
    for section in sections:
        inner = inner.setdefault(section, {})
        if not isinstance(inner, dict):
            raise RecipeError(f"--set {override}: '{section}' holds no keys")
    inner[key] = strict_yaml.load(text, f"--set {override}")


def _explain(problem: Any) -> str:
    """One of pydantic's findings as `key: what is wrong, what came`."""
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        *sections, key = problem["loc"]
        section = f"{'.'.join(sections)}: " if sections else ""
        return section + unknown("key", str(key), _keys(sections))
    if problem["type"] == "missing":
        return f"{where} is missing"
    if problem["type"] == "model_type":
        return f"{where}: expected a section with keys, got {problem['input']!r}"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "int_type":
        message += " (as 2000000, 2M or 1.5k; k, M and B are known)"
    if problem["type"] == "value_error":
        return f"{where}: {message}" if where else message
    return f"{where}: {message[0].lower()}{message[1:]}, got {problem['input']!r}"


def _keys(sections: Sequence[Any]) -> list[str]:
    level: type[BaseModel] = Recipe
    for section in sections:
        level = level.model_fields[section].annotation  # type: ignore[assignment]
    return list(level.model_fields)
