"""What is said of a server that lets us wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from servers import Proxy, Server
from sqlalchemy.exc import OperationalError
from studies import FACTS

from attnres_cli.errors import AwayError, StudyError
from attnres_cli.records.run import RunSpec
from attnres_cli.store import postgres, waits
from attnres_cli.store.store import Store


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All that is told, however often."""
    words: list[str] = []
    monkeypatch.setattr(waits, "_hears", [words.append])
    monkeypatch.setattr(waits, "_SILENT_S", 0.6)
    monkeypatch.setattr(waits, "_LOOK_S", 0.05)
    return words


@pytest.fixture
def proxy(database: tuple[Server, str]) -> Iterator[Proxy]:
    proxy = Proxy(database[0].port)
    yield proxy
    proxy.flow()
    proxy.close()


@pytest.fixture
def store(database: tuple[Server, str], proxy: Proxy, specs: list[RunSpec]) -> Store:
    server, name = database
    store = Store.open(server.url(name).replace(str(server.port), str(proxy.port)), create=True)
    store.plan(specs, FACTS)
    return store


@pytest.mark.slow
def test_a_silent_server_is_told_of_once_with_since_and_until_when_and_then_answers(
    store: Store, proxy: Proxy, told: list[str]
):
    proxy.stall()
    threading.Timer(2.0, proxy.flow).start()

    assert len(store.runs()) == 6

    (line,) = told
    assert "the server has not answered since " in line
    assert "waiting until " in line


@pytest.mark.slow
def test_a_server_that_stays_silent_is_left_when_patience_ends(
    store: Store, proxy: Proxy, told: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(waits, "_LEAST_S", 1.5)
    store.patience_s, began = 0.0, time.monotonic()
    proxy.stall()

    with pytest.raises(AwayError):
        store.runs()

    assert time.monotonic() - began < 30
    assert any("has not answered since" in line for line in told)


@pytest.mark.slow
def test_a_slow_network_changes_nothing_but_the_time(store: Store, proxy: Proxy, told: list[str]):
    proxy.delay_s = 0.1

    assert len(store.runs()) == 6
    assert store.claim([1]) is not None
    assert told == []


@pytest.mark.slow
def test_a_connection_that_is_closed_in_one_direction_is_made_anew(store: Store, proxy: Proxy):
    assert len(store.runs()) == 6
    proxy.half_close()

    assert len(store.runs()) == 6


def test_words_are_said_once_a_minute_and_by_one_process(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(waits, "_said", {})
    for words in ("away", "away", "full", "away"):
        waits.tell(words)
    assert capfd.readouterr().err == "attnres: away\nattnres: full\n"

    monkeypatch.setattr(waits.multiprocessing, "parent_process", lambda: "another")
    waits.tell("silent")
    assert capfd.readouterr().err == ""


class Refused(Exception):  # noqa: N818
    def __init__(self, sqlstate: str, words: str) -> None:
        super().__init__(words)
        self.sqlstate = sqlstate


def refusal(sqlstate: str, words: str) -> StudyError:
    error = OperationalError("", {}, Refused(sqlstate, words))
    return postgres.refusal("postgresql://me@host/lab", error, opened=True)


def test_a_full_disk_of_the_server_is_waited_for_like_an_outage():
    refused = refusal("53100", 'ERROR:  could not extend file "base/16384/16411"')

    assert isinstance(refused, AwayError)
    assert refused.is_up
    assert "the server's disk is full (could not extend file" in str(refused)
    assert "free some space there; what is recorded stays" in str(refused)


def test_a_server_that_can_only_be_read_is_not_waited_for():
    refused = refusal("25006", "ERROR:  cannot execute INSERT in a read-only transaction")

    assert not isinstance(refused, AwayError)
    assert str(refused).endswith("can only be read, as a standby: name its primary")
