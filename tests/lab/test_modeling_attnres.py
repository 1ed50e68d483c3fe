"""Exported runs as models of transformers: the same numbers, with caches and with padding."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_model
from torch import Tensor

import attnres_cli
from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import ExportError
from attnres_cli.lab.huggingface import files, of_bytes
from attnres_cli.nn.model import Transformer, init_weights
from attnres_cli.nn.residual import registry
from attnres_cli.nn.shape import Shape
from attnres_cli.nn.variant import parse

transformers = pytest.importorskip("transformers")

SHAPE = Shape(2, 16, 4, 2, 8, 24, vocab_size=256, seq_len=40)
QUICK = ("attnres", "mhc", "sandwich")
DESIGNS = [
    pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in registry()
]
TRUNKS = {
    "grouped": SHAPE,
    "tied": replace(SHAPE, tie_embeddings=True),
    "without positions": replace(SHAPE, positions="none", mlp=("gelu", "relu2")),
    "memory": replace(SHAPE, positions="none", attention=("kda", "softmax")),
    "experts": replace(SHAPE, mlp=("swiglu", "moe"), n_experts=6, top_k=2, n_shared_experts=1),
    "latent": replace(SHAPE, positions="none", attention=("softmax", "mla"), d_latent=6),
}
Export = Callable[..., tuple[Transformer, Path]]


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers copies the code that it runs into a folder of the test."""
    cache = str(tmp_path / "modules")
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", cache)
    monkeypatch.setattr(sys, "path", sys.path.copy())


@pytest.fixture
def export(tmp_path: Path, tiny_recipe: Recipe) -> Export:
    """Our model, with the parameters of its design moved, and the folder it is exported to."""

    def write(variant: str, shape: Shape = SHAPE) -> tuple[Transformer, Path]:
        model = Transformer(shape, parse(variant).build(shape.d_model, shape.n_sublayers)).eval()
        init_weights(model, seed=0)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.residual.parameters():
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
        recipe = tiny_recipe.model_dump(mode="json")
        texts, _ = files({"shape": asdict(shape), "variant": variant, "recipe": recipe})
        (folder := tmp_path / "exported").mkdir()
        save_model(model, str(folder / "model.safetensors"))
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        return model, folder

    return write


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(256, (4, 12), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def mask(tokens: Tensor) -> Tensor:
    """Four rows that begin at three places."""
    mask = torch.ones_like(tokens)
    mask[0, :5] = mask[2, :3] = mask[3, :3] = 0
    return mask


def loaded(folder: Path, **given: object) -> Any:
    found, told = transformers.AutoModelForCausalLM.from_pretrained(
        folder, trust_remote_code=True, output_loading_info=True, **given
    )
    assert not any(told.values())
    return found


def greedy(model: Any, tokens: Tensor, **given: object) -> Tensor:
    return model.generate(tokens, max_new_tokens=5, do_sample=False, **given)


@torch.no_grad()
def compare(ours: Transformer, theirs: Any, tokens: Tensor, mask: Tensor) -> None:
    """Logits and tokens are equal: one row at a time, in a padded batch, with a cache or not."""
    assert torch.equal(theirs(tokens).logits, ours(tokens))
    assert torch.equal(greedy(theirs, tokens), ours.generate(tokens, 5, temperature=0))
    padded = theirs(tokens, attention_mask=mask).logits
    batch = greedy(theirs, tokens, attention_mask=mask)
    for row, seen, logits, found in zip(tokens, mask, padded, batch, strict=True):
        begin = int((seen == 0).sum())
        alone = row[None, begin:]
        torch.testing.assert_close(logits[begin:], ours(alone)[0], rtol=0, atol=1e-5)
        assert torch.equal(found[None, begin:], ours.generate(alone, 5, temperature=0))


@pytest.mark.parametrize("name", DESIGNS)
def test_an_exported_design_gives_the_same_numbers(name: str, export: Export, tokens, mask):
    ours, folder = export(name)
    theirs = loaded(folder)
    assert not theirs.training
    compare(ours, theirs, tokens, mask)


@pytest.mark.parametrize("trunk", TRUNKS)
def test_an_exported_trunk_gives_the_same_numbers(trunk: str, export: Export, tokens, mask):
    ours, folder = export("attnres:block_size=2", TRUNKS[trunk])
    theirs = loaded(folder)
    compare(ours, theirs, tokens, mask)
    beams = {"attention_mask": mask, "num_beams": 3}
    uncached = greedy(theirs, tokens, use_cache=False, **beams)
    assert torch.equal(greedy(theirs, tokens, **beams), uncached)


def test_an_exported_model_can_be_trained_saved_and_loaded(export: Export, tokens, tmp_path):
    ours, folder = export("mhc", TRUNKS["tied"])
    theirs = loaded(folder)
    loss = ours(tokens[:, :-1], tokens[:, 1:]).item()
    assert theirs(tokens, labels=tokens).loss.item() == pytest.approx(loss, abs=1e-5)
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-2)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        losses.append(theirs(tokens, labels=tokens).loss)
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0] - 0.5

    theirs.save_pretrained(tmp_path / "tuned")
    with pytest.raises(ExportError, match=r"saved by transformers: load it with AutoModelForCau"):
        attnres_cli.load(tmp_path / "tuned")
    again = loaded(tmp_path / "tuned")

    assert torch.equal(again(tokens).logits, theirs.eval()(tokens).logits)
    fresh = transformers.AutoModelForCausalLM.from_config(theirs.config, trust_remote_code=True)
    drawn = Transformer(ours.shape, parse("mhc").build(16, 4))
    init_weights(drawn, seed=0)
    assert torch.equal(fresh(tokens).logits, drawn(tokens))


def test_loading_in_half_precision_keeps_the_tables_in_fp32(export: Export, tokens: Tensor):
    ours, folder = export("attnres")
    theirs = loaded(folder, dtype=torch.bfloat16)
    assert {each.dtype for each in theirs.parameters()} == {torch.bfloat16}
    assert {each.dtype for each in theirs.buffers()} == {torch.float32}
    logits = theirs(tokens).logits
    assert logits.dtype == torch.bfloat16
    torch.testing.assert_close(logits.float(), ours(tokens), rtol=0, atol=0.1)


def test_a_copy_in_half_precision_of_a_design_without_norms_is_whole(
    export: Export, tmp_path: Path
):
    ours, folder = export("rezero", replace(SHAPE, n_layers=8, d_model=64))
    loaded(folder, dtype=torch.bfloat16).save_pretrained(tmp_path / "half")
    again = loaded(tmp_path / "half", dtype=torch.bfloat16)
    assert torch.equal(again.model.embed.weight, ours.embed.weight.bfloat16())


def test_a_cache_goes_on_where_it_was_left(export: Export, tokens: Tensor, mask: Tensor):
    _, folder = export("attnres")
    model = loaded(folder)
    kept = model(tokens[:, :8], attention_mask=mask[:, :8], use_cache=True, logits_to_keep=1)
    found = greedy(model, tokens, past_key_values=kept.past_key_values, attention_mask=mask)
    assert kept.logits.shape == (4, 1, 256)
    assert torch.equal(found, greedy(model, tokens, attention_mask=mask))
    assert torch.equal(greedy(model, tokens, prefill_chunk_size=5), greedy(model, tokens))


def test_padding_on_the_right_changes_nothing_before_it(export: Export, tokens: Tensor):
    ours, folder = export("attnres")
    model, mask = loaded(folder), torch.ones_like(tokens)
    mask[0, 7:] = 0
    found = model(tokens, attention_mask=mask).logits
    torch.testing.assert_close(found[0, :7], ours(tokens[:1, :7])[0], rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="ends with padding: pad on the left"):
        model.generate(tokens, attention_mask=mask, max_new_tokens=2)


def test_the_loss_of_a_padded_batch_is_that_of_its_rows_alone(export: Export, tokens, mask):
    _, folder = export("attnres")
    model = loaded(folder)
    rows = [row[None, int((seen == 0).sum()) :] for row, seen in zip(tokens, mask, strict=True)]
    losses = [model(row, labels=row).loss * (row.shape[1] - 1) for row in rows]
    labels = tokens.masked_fill(mask == 0, -100)

    found = model(tokens, attention_mask=mask, labels=labels).loss

    expected = sum(losses) / sum(row.shape[1] - 1 for row in rows)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_wrong_calls_are_refused_in_one_line(export: Export, tokens: Tensor, mask: Tensor):
    _, folder = export("attnres")
    model = loaded(folder)
    answer = partial(greedy, model)
    between, without = mask.clone(), mask.clone()
    between[0, 8] = without[1] = 0
    ended = greedy(model, tokens, return_dict_in_generate=True)
    full = {"past_key_values": ended.past_key_values}
    for call, given, options, words in (
        (model, tokens, {"attention_mask": between}, "a row without tokens, or padding between"),
        (model, tokens, {"attention_mask": without}, "a row without tokens, or padding between"),
        (model, tokens, {"attention_mask": mask[:, 1:]}, r"must be \(batch, 12\), got \(4, 11\)"),
        (model, tokens.repeat(1, 4)[:, :44], {}, "44 tokens, but the model has 40 positions"),
        (model.resize_token_embeddings, 300, {}, "has 256 tokens, which cannot change: add none"),
        (answer, tokens, {"cache_implementation": "static"}, "leave it out"),
        (answer, tokens, {"prompt_lookup_num_tokens": 2}, "not supported with stateful"),
        (model, ended.sequences[:, :10], full, "26 tokens, but this cache was made for 16"),
    ):
        with pytest.raises(ValueError, match=words):
            call(given, **options)
    assert model.resize_token_embeddings(256).weight.shape[0] == model(tokens).logits.shape[-1]


def test_the_byte_tokenizer_is_exact_for_every_byte(export: Export):
    _, folder = export("standard")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)

    every = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x10000), 0x1F389]))
    for text in ("def f(x):\r\n\t return  'Ā Ġ'\x00", every, " . , 's", ""):
        found = tokenizer(text)
        assert found["input_ids"] == list(text.encode())
        assert tokenizer.decode(found["input_ids"]) == text
    names = tokenizer.convert_ids_to_tokens(list(range(256)))
    assert tokenizer.convert_tokens_to_ids(names) == list(range(256))
    assert len(tokenizer) == 256
    assert set(found) == {"input_ids", "attention_mask"}


def test_a_tokenizer_is_copied_or_the_reason_why_not_is_given(here: Path, tiny_recipe: Recipe):
    (here / "own.json").write_text(of_bytes())

    def lack(size: int = 256, **data: object) -> str:
        recipe = tiny_recipe.model_dump(mode="json")
        shape = asdict(replace(SHAPE, vocab_size=size))
        recipe["data"] |= data
        texts, why = files({"shape": shape, "variant": "standard", "recipe": recipe})
        assert ("tokenizer.json" in texts) == ("tokenizer_config.json" in texts) == (not why)
        return why

    assert lack() == lack(tokenizer="own.json") == ""
    assert "own.json is not the file that the run had" in lack(tokenizer="own.json", size=300)
    assert "none.json cannot be read: No such file" in lack(tokenizer="none.json")
    assert "tiktoken:gpt2, not a file of tokenizers" in lack(tokenizer="tiktoken:gpt2")
    assert lack(source="nanogpt") == "the data are tokens (nanogpt), not text"
    pairs = {"model": {"vocab": [["a", 0.0], ["b", 0.0]]}, "added_tokens": [{"id": 2}]}
    (here / "own.json").write_text(json.dumps(pairs))
    assert lack(tokenizer="own.json", size=3) == ""
    (here / "own.json").write_text("[]")
    assert "is not the file" in lack(tokenizer="own.json")


def test_a_tokenizer_adds_no_tokens_and_names_the_one_between_texts(here: Path, tiny_recipe):
    package = pytest.importorskip("tokenizers")
    model = package.models.WordLevel({"[UNK]": 0, "</s>": 1, "a": 2, "[CLS]": 3}, "[UNK]")
    own = package.Tokenizer(model)
    own.pre_tokenizer = package.pre_tokenizers.Whitespace()
    own.add_special_tokens(["</s>", "[CLS]"])
    own.post_processor = package.processors.TemplateProcessing(
        "[CLS] $A </s>", special_tokens=[("[CLS]", 3), ("</s>", 1)]
    )
    own.save("own.json")
    shape, recipe = asdict(replace(SHAPE, vocab_size=4)), tiny_recipe.model_dump(mode="json")
    for separator, end in ((None, "</s>"), ("none", None)):
        recipe["data"] |= {"source": "text", "tokenizer": "own.json", "separator": separator}
        texts, _ = files({"shape": shape, "variant": "standard", "recipe": recipe})
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (here / name).write_text(texts[name])
        found = transformers.PreTrainedTokenizerFast.from_pretrained(here)
        assert found("a a")["input_ids"] == [2, 2]
        assert found.eos_token == end


def test_a_damaged_folder_is_one_exception(export: Export):
    _, folder = export("attnres")
    config, weights = folder / "config.json", folder / "model.safetensors"
    held, whole = config.read_text(), weights.read_bytes()
    config.write_text(held.replace(f'"n_layers": {SHAPE.n_layers}', '"n_layers": "two"'))
    with pytest.raises(ExportError, match=r"n_layers is 'two' in config\.json"):
        loaded(folder)
    config.write_text(held)
    weights.write_bytes(whole[:100])
    with pytest.raises(ExportError, match="is damaged"):
        loaded(folder)
