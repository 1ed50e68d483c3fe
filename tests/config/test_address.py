"""Where a study is, and that its password goes no further."""

from __future__ import annotations

import os

import pytest

from attnres_cli.config.address import (
    DEFAULT,
    file_of,
    is_url,
    parted,
    typed,
    withhold,
    without_passwords,
)
from attnres_cli.errors import StudyError

URL = "postgresql+psycopg://me{}@host:5432/lab"


@pytest.mark.parametrize("path", ["attnres.db", "/a/b.db", "sqlite:////a/b.db", "sqlite:///b.db"])
def test_a_path_is_no_url_and_neither_is_that_of_a_file(path: str):
    assert not is_url(path)
    assert str(file_of(path)) == path.removeprefix("sqlite:///")


@pytest.mark.parametrize(
    ("study", "words"),
    [
        (DEFAULT, []),
        ("", []),
        ("other.db", ["--study", "other.db"]),
        (URL.format(":s3cret"), ["--study", URL.format("")]),
    ],
)
def test_a_study_is_typed_where_it_is_not_the_default_without_its_password(
    study: str, words: list[str]
):
    assert typed(study) == words


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg", "mysql", "no+such"])
def test_every_other_url_is_one(scheme: str):
    assert is_url(f"{scheme}://host/lab")


@pytest.mark.parametrize(
    ("typed", "password"),
    [
        ("", None),
        (":", None),
        (":secret", "secret"),
        (":s%40cr%2Ft", "s@cr/t"),
        (":s@cr/t", "s@cr/t"),
        (":a?b", "a?b"),
        (":a:b", "a:b"),
    ],
)
def test_a_password_is_parted_from_its_url(typed: str, password: str | None):
    assert parted(URL.format(typed)) == (URL.format(""), password)


def test_a_password_among_the_options_is_parted_too():
    found = parted("postgresql://host/lab?connect_timeout=3&password=s%25&options=-cx%3Dy")

    assert found == ("postgresql://host/lab?connect_timeout=3&options=-cx%3Dy", "s%")
    assert parted("postgresql://me@host/lab?password=s") == ("postgresql://me@host/lab", "s")


def test_a_secret_of_another_kind_is_refused_and_not_shown():
    with pytest.raises(StudyError, match="sslpassword does not belong into a URL") as caught:
        parted("postgresql://host/lab?sslpassword=geheim")

    assert "geheim" not in str(caught.value)


def test_a_withheld_password_is_where_the_client_looks_for_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PGPASSWORD", "before")

    assert withhold("attnres.db") == "attnres.db"
    assert withhold(URL.format("")) == URL.format("")
    assert os.environ["PGPASSWORD"] == "before"

    assert withhold(URL.format(":se%20cret")) == URL.format("")
    assert os.environ["PGPASSWORD"] == "se cret"


def test_a_message_hides_what_was_typed_in_the_wrong_place():
    text = f"unknown variant '{URL.format(':s@cr/t')}'. Known: attnres, standard"

    assert (
        without_passwords(text) == f"unknown variant '{URL.format('')}'. Known: attnres, standard"
    )
    assert without_passwords("write to me: a@b") == "write to me: a@b"


@pytest.mark.parametrize(
    "typed",
    [
        "postgresql+psycopg:/me:geheim@host/lab",
        "postgresql+psycopg:me:geheim@host/lab",
        "postgresql+psycopg//me:geheim@host/lab",
        "postgresql+psycopg;//me:geheim@host/lab",
        "postgresql:\\\\me:geheim@host/lab",
        " postgres:/me:geheim@host/lab",
        "Postgres me:geheim@host",
    ],
)
def test_the_password_of_a_mistyped_url_is_not_shown(typed: str):
    with pytest.raises(StudyError, match="expected postgresql\\+psycopg://user@host") as caught:
        withhold(typed)

    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:geheim@host/lab",
        "postgresql:/me:geheim@host/lab",
        "postgresql//me:geheim@host/lab",
        "postgresql://host/lab?passwort=geheim&x=1",
        "http:/me:geheim@host",
    ],
)
def test_no_message_has_the_password_of_a_url_wherever_it_was_typed(url: str):
    told = without_passwords(f"no such option: {url}")

    assert "geheim" not in told
    assert "host" in told
