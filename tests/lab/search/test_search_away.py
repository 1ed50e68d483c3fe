"""A search whose connections to PostgreSQL are cut, at one statement after another."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
import tenacity
from servers import Server
from sqlalchemy import Engine, event
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from untrained import Bench, deep_is_good

from attnres_cli.lab.search.studies import read
from attnres_cli.records.run import RunRecord, Status
from attnres_cli.records.search_records import State
from attnres_cli.store import retry

APART = 200  # a look at the trials, which is done again as a whole, has fifty to a hundred


class Cuts:
    """The server hangs up now and then: before or after a commit, or at a statement (`seen`)."""

    def __init__(self, server: Server) -> None:
        self.seen, self._server = list[str](), server
        self._random, self._left = random.Random(8), math.inf

    @contextmanager
    def active(self) -> Iterator[None]:
        self._left = 1
        try:
            yield
        finally:
            self._left = math.inf

    def is_now(self, moment: str) -> bool:
        """Whether it hangs up: after 1 to APART moments at which it might have."""
        self._left -= 1
        if self._left > 0:
            return False
        self._left = self._random.randint(1, APART)
        self.seen.append(moment)
        return True

    def statement(self, pooled: Any, _cursor: object, text: str, *_rest: object) -> None:
        if self.is_now(text.split()[0]):
            self._server.hang_up(pooled.connection.dbapi_connection)

    def commit(self, pooled: Any) -> None:
        connection = pooled.dbapi_connection
        if self.is_now("before a commit"):
            self._server.hang_up(connection)
        if self.is_now("after a commit"):
            self._server.commit_unanswered(connection)
        connection.commit()


@pytest.fixture
def cuts(database: tuple[Server, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuts]:
    """On every connection to that database that this process makes through SQLAlchemy."""
    server, _ = database
    made = Cuts(server)
    event.listen(Engine, "before_cursor_execute", made.statement)
    monkeypatch.setattr(retry, "_PAUSES", tenacity.wait_fixed(0.05))
    monkeypatch.setattr(PGDialect_psycopg, "do_commit", lambda _, pooled: made.commit(pooled))
    yield made
    event.remove(Engine, "before_cursor_execute", made.statement)


def odd_is_poor(run: RunRecord) -> float:
    return deep_is_good(run) + 5 * (int(run.recipe_digest, 16) % 2)


@pytest.mark.slow
def test_a_search_outlives_connections_that_are_cut_at_any_moment(database, cuts: Cuts):
    server, name = database
    bench = Bench(server.url(name), n_trials=4)
    with closing(bench), cuts.active():
        bench.run(odd_is_poor)

    assert {"SELECT", "before a commit", "after a commit"} <= set(cuts.seen)
    assert {"INSERT", "UPDATE"} & set(cuts.seen)
    assert len(cuts.seen) > 10
    (search,) = read(server.url(name))
    for family in search.families:
        assert {trial.state for trial in family.trials} == {State.COMPLETE}
        assert len(family.trials) in (4, 5, 6)  # and the shape that was best for the other
        assert len({(t.recipe_digest, t.variant) for t in family.trials}) == len(family.trials)
    assert len(set(bench.trained)) == len(bench.trained)
    assert {run.status for run in bench.store.runs()} == {Status.COMPLETE}


@pytest.mark.slow
def test_a_report_outlives_connections_that_are_cut(database, cuts: Cuts, attnres):
    server, name = database
    report = ("report", "--study", server.url(name), "--format", "json")
    with closing(Bench(server.url(name), n_trials=2)) as bench:
        bench.run()

    _, calm, _ = attnres(*report)
    with cuts.active():
        torn = [attnres(*report) for _ in range(10)]

    assert json.loads(calm)["search"]
    assert [(code, err) for code, _, err in torn if code] == []
    assert {out for _, out, _ in torn} == {calm}
    assert len(cuts.seen) > 3
    assert "trying again" in "".join(err for _, _, err in torn)
