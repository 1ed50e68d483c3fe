"""Where a study is, and that its password goes no further."""

from __future__ import annotations

import os

import pytest

from attnres_cli.config import address
from attnres_cli.config.address import file_of, is_url, parted, withhold, without_passwords
from attnres_cli.errors import StudyError

URL = "postgresql+psycopg://me{}@host:5432/lab"


def test_paths_are_files_and_every_other_url_is_a_server():
    for path in ("attnres.db", "/a/b.db", "sqlite:////a/b.db", "sqlite:///b.db"):
        assert not is_url(path)
        assert str(file_of(path)) == path.removeprefix("sqlite:///")
    for scheme in ("postgresql", "postgresql+psycopg", "mysql", "no+such"):
        assert is_url(f"{scheme}://host/lab")


def test_a_study_is_typed_only_where_it_is_not_the_default_and_without_its_password():
    assert address.typed(address.DEFAULT) == address.typed("") == []
    assert address.typed("other.db") == ["--study", "other.db"]
    assert address.typed(URL.format(":s3cret")) == ["--study", URL.format("")]


def test_a_password_is_separated_from_its_url_and_any_other_secret_refused():
    for part, password in (
        ("", None),
        (":", None),
        (":secret", "secret"),
        (":s%40cr%2Ft", "s@cr/t"),
        (":s@cr/t", "s@cr/t"),
        (":a?b", "a?b"),
        (":a:b", "a:b"),
    ):
        assert parted(URL.format(part)) == (URL.format(""), password)
    found = parted("postgresql://host/lab?connect_timeout=3&password=s%25&options=-cx%3Dy")
    assert found == ("postgresql://host/lab?connect_timeout=3&options=-cx%3Dy", "s%")
    assert parted("postgresql://me@host/lab?password=s") == ("postgresql://me@host/lab", "s")
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


def test_the_password_of_a_mistyped_url_is_not_shown():
    for mistyped in (
        "postgresql+psycopg:/me:geheim@host/lab",
        "postgresql+psycopg:me:geheim@host/lab",
        "postgresql+psycopg//me:geheim@host/lab",
        "postgresql+psycopg;//me:geheim@host/lab",
        "postgresql:\\\\me:geheim@host/lab",
        " postgres:/me:geheim@host/lab",
        "Postgres me:geheim@host",
    ):
        with pytest.raises(StudyError, match="expected postgresql\\+psycopg://user@host") as caught:
            withhold(mistyped)
        assert "geheim" not in str(caught.value)


def test_no_message_has_the_password_of_a_url_wherever_it_was_typed():
    for url in (
        "postgresql://me:geheim@host/lab",
        "postgresql:/me:geheim@host/lab",
        "postgresql//me:geheim@host/lab",
        "postgresql://host/lab?passwort=geheim&x=1",
        "http:/me:geheim@host",
    ):
        shown = without_passwords(f"no such option: {url}")
        assert "geheim" not in shown
        assert "host" in shown
    text = "unknown variant '{}'. Known: attnres, standard"
    hidden = without_passwords(text.format(URL.format(":s@cr/t")))
    assert hidden == text.format(URL.format(""))
    assert without_passwords("write to me: a@b") == "write to me: a@b"
