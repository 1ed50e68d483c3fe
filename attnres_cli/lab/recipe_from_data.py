"""A recipe of one's own: its data are found by looking at a file or folder, all else begins as in
recipe `quick`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attnres_cli import __version__
from attnres_cli.config.overrides import put
from attnres_cli.config.recipe import Recipe, load, validate
from attnres_cli.data import sources, tokenfiles
from attnres_cli.data.text import likely_column
from attnres_cli.data.tokens import Tokens
from attnres_cli.errors import DataError, RecipeError
from attnres_cli.files import path_of, read_text
from attnres_cli.lab.huggingface import vocabulary
from attnres_cli.records.doubts import MOST_EPOCHS, STANDS_IN_TRAINING
from attnres_cli.records.plan import n_tokens

_LIKE = "quick"
_VOCABULARIES = (None, 50_257, 2**16, 2**17, 2**18)  # None: as many as short files hold
_MOST_BYTES = 2**26  # of a file that may be a tokenizer
_NOT_READ, _TRAINS = (
    "not read, beside train and val: ",
    "called validation, and divided as all else: ",
)


def recipe_text(given: str, file: str, overrides: Sequence[str] = ()) -> str:
    """The YAML of a recipe on the data there, with comments, to be kept as `file`. Overrides are of
    section `data`. Raises DataError where nothing there can be trained on, RecipeError.
    """
    path = path_of(given, "the data", DataError).resolve()
    if not str(path).isprintable():
        raise DataError(f"{given!r} cannot stand in a recipe: call it otherwise")
    if not path.exists():
        raise DataError(f"{given} does not exist: attnres init FILE_OR_FOLDER")
    reasons = []
    for found in _candidates(path):
        data = _changed(found, overrides)
        try:
            recipe, tokens = _fitted(data)
        except (DataError, RecipeError) as error:  # or a key of --set is of another kind of data
            reasons.append(error)
        else:
            return _text(recipe, tokens, data, file)
    raise reasons[0]


def _changed(data: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The section with what --set says."""
    values = {"data": {**data}}
    for override in overrides:
        put(values, override)
    if set(values) != {"data"}:
        raise RecipeError("attnres init takes --set data.KEY=VALUE only: change the recipe instead")
    return values["data"]


def duplicates_noted(text: str) -> list[str]:
    """Lines of a recipe's first comment about copies, about training text that validates, and about
    files that are not read as their names say.
    """
    lines = [line.lstrip("# ") for line in text.splitlines() if line.startswith("#")]
    told = ("exact copies", STANDS_IN_TRAINING, _NOT_READ, _TRAINS)
    return [line for line in lines if any(words in line for words in told)]


def _candidates(path: Path) -> Iterator[dict[str, Any]]:
    """What section `data` may say of a path, the likeliest first: token files, then text."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    files = [each for each in files if each.name[0] != "." and each.name.isprintable()]
    suffixes = {each.suffix for each in files}
    tokenizer = next((each for each in files if _vocabulary(each)), None)
    sizes = _VOCABULARIES if tokenizer is None else (_vocabulary(tokenizer),)
    is_indexed = any(each.with_suffix(".idx").exists() for each in files if each.suffix == ".bin")
    of_bin = ("megatron",) if is_indexed else ("llmc", "nanogpt")
    for suffix, source in (*((".bin", each) for each in of_bin), (".npy", "npy")):
        if suffix in suffixes:
            for size in sizes:
                for dtype in (None, "uint32") if source == "nanogpt" else (None,):
                    yield _set(source=source, path=str(path), vocab_size=size, dtype=dtype)
    text = {
        "source": "text",
        "tokenizer": None if tokenizer is None else str(tokenizer),
        "column": likely_column(path),
    }
    train, val = tokenfiles.divided(files)
    if len(train) == len(val) == 1 and tokenizer not in (*train, *val):
        yield _set(**text, path=str(train[0]), val_path=str(val[0]))
    yield _set(**text, path=str(path))


def _beside(data: dict[str, Any], split: str) -> list[str]:
    """What of a folder of text is not read, or not as its name says."""
    path, val = Path(data["path"]), data.get("val_path")
    folder = path.parent if val else path
    if data["source"] != "text" or not folder.is_dir() or "their own split" in split:
        return []
    files = [each for each in sorted(folder.iterdir()) if each.name[0] != "."]
    if val is None:
        train, apart = tokenfiles.divided(files)
        words = _TRAINS if train != files else ""
    else:
        apart = [each for each in files if str(each) not in (str(path), val)]
        apart, words = [each for each in apart if not _vocabulary(each)], _NOT_READ
    return [f"{words}{', '.join(each.name for each in apart)}"] if words and apart else []


def _set(**keys: Any) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if value is not None}


def _vocabulary(path: Path) -> int:
    """Tokens of a file of the `tokenizers` library; 0 where it is none."""
    if path.suffix != ".json" or not path.is_file():
        return 0
    try:
        return vocabulary(read_text(path, "tokenizer", DataError, _MOST_BYTES))
    except DataError:
        return 0


def _fitted(data: dict[str, Any]) -> tuple[Recipe, Tokens]:
    """Recipe quick on these data, with no more tokens than they suffice for. Raises DataError."""
    values = load(_LIKE).model_dump(exclude={"slope", "description", "name"})
    seq_len, wanted = values["model"]["seq_len"], values["train"] | {}
    values |= {"data": data, "train": wanted | {"eval_tokens": seq_len}}
    recipe = validate(values, f"data {data['path']}")
    tokens = sources.load(recipe)
    facts = tokens.description
    most = (facts.val_tokens - 1) // seq_len * seq_len
    wanted["eval_tokens"] = min(wanted["eval_tokens"], most)
    least = recipe.tokens_per_step
    wanted["tokens"] = max(least, min(wanted["tokens"], MOST_EPOCHS * facts.train_tokens))
    return validate(values | {"train": wanted}, f"data {data['path']}"), tokens


def _text(recipe: Recipe, tokens: Tokens, data: dict[str, Any], file: str) -> str:
    """The recipe as YAML, each key with what it means."""
    model, optim, train, facts = recipe.model, recipe.optim, recipe.train, tokens.description
    found = {key: json.dumps(value, ensure_ascii=False) for key, value in data.items()}
    if recipe.data.is_divided:
        found["val_fraction"] = (
            f"{recipe.data.val_fraction}  # of the data, where nothing else validates"
        )
    if recipe.data.source == "text" and "tokenizer" not in data:
        found["# tokenizer"] = "FILE.json  # or tiktoken:gpt2; without one a token is a byte"
    section = "\n".join(f"  {key}: {value}" for key, value in found.items())
    epochs, beside = n_tokens(recipe) / facts.train_tokens, _beside(data, str(facts.split))
    looked_at = "\n#           ".join(
        (facts.size, f"vocabulary {facts.vocab_size:,}", *str(facts.split).split("; "), *beside)
    )
    return f"""\
# A recipe of your own, begun by attnres {__version__} from recipe {_LIKE}. Change what you like, or
# by --set section.key=value; what you leave out has its default: attnres recipes {file}
# Found:    {looked_at}
# Command:  attnres ablate --recipe {file}
description: my own data
data:
{section}
model:  # all sizes: attnres recipes quick
  n_layers: {model.n_layers}  # each an attention and an MLP, which are two sublayers
  d_model: {model.d_model}
  n_heads: {model.n_heads}
  seq_len: {model.seq_len}  # tokens that a model sees at once
optim:
  lr: {optim.lr}  # of every design; `attnres ablate --tune-lr` finds one for each
  warmup_fraction: {optim.warmup_fraction}  # of the steps; small models in short runs want many
train:
  tokens: {train.tokens}  # of a run: {epochs:.2g} times the training tokens there are (epochs)
  batch_size: {train.batch_size}  # sequences in a step
  eval_tokens: {train.eval_tokens}  # of validation: more tell designs apart more finely
  n_evals: {train.n_evals}  # evaluations, the last one at the end
"""
