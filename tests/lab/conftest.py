"""What the tests of training and searching share: quick data."""

from __future__ import annotations

import pytest
from commands import describe_by_few_tokens


@pytest.fixture(autouse=True)
def _describe_data_by_few_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    describe_by_few_tokens(monkeypatch)
