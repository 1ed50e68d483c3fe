from __future__ import annotations

import runpy
import tomllib
from pathlib import Path

import pytest
import torch

from attnres_cli.errors import TorchError
from attnres_cli.nn import private


def test_a_torch_without_a_private_name_is_refused_with_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(torch._C, "_current_graph_task_id")

    with pytest.raises(TorchError) as refused:
        runpy.run_path(private.__file__)

    project = Path(__file__).parents[2] / "pyproject.toml"
    asked = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["dependencies"]
    (supported,) = (name for name in asked if name.startswith("torch"))
    line = f"attnres does not work with torch {torch.__version__} yet ("
    assert str(refused.value).startswith(line)
    assert "_current_graph_task_id" in str(refused.value)
    assert str(refused.value).endswith(f"pip install '{supported}'")
