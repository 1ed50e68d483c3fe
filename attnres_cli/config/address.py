"""Where a study is: in a file, or on a server under a URL, whose password nobody gets to see.

Each command first takes the password out of the URL (`withhold`), and what it prints, stores or
hands to workers has none.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote

from attnres_cli.errors import StudyError
from attnres_cli.files import path_of

DEFAULT = "attnres.db"  # the study where none is named

_SQLITE = re.compile(r"sqlite(\+pysqlite)?:///")
_USER = re.compile(r"(?P<user>[^:/?]*)(?::(?P<password>.*))?@(?P<place>[^@]*)")  # to the last @
_MISTYPED = re.compile(r"\W*postgres", re.IGNORECASE)  # no file that anybody would name so
_HIDDEN = re.compile(r"((?:[:;][/\\]*|//)[^:/@?\s]*):\S*@")
_IN_QUERY = re.compile(r"(passw\w*=)[^&\s']+", re.IGNORECASE)
_SECRET_WORDS = ("password", "secret")


def typed(study: str) -> list[str]:
    """The words of a command line that name this study without password; none for the default."""
    return [] if study in ("", DEFAULT) else ["--study", parted(study)[0]]


def is_url(study: str) -> bool:
    """Whether a study is on a server, not in a file; `sqlite:///path` is a file."""
    return "://" in study and _SQLITE.match(study) is None


def file_of(study: str) -> Path:
    """The path of a study in a file, typed as such or as a SQLite URL."""
    return path_of(_SQLITE.sub("", study, count=1), "study", StudyError)


def parted(study: str) -> tuple[str, str | None]:
    """A study without its password, and that. StudyError where the URL has another secret."""
    if not is_url(study):
        return study, None
    scheme, rest = study.split("://", 1)
    match, user, password = _USER.fullmatch(rest), "", None
    if match is not None:
        user, password, rest = f"{match['user']}@", match["password"], match["place"]
    place, mark, query = rest.partition("?")
    kept = []
    for part in query.split("&"):
        name, _, value = part.partition("=")
        if name.lower() == "password":
            password = value
        elif any(word in name.lower() for word in _SECRET_WORDS):
            raise StudyError(
                f"--study: {name} does not belong into a URL: put it into ~/.pg_service.conf and "
                "name that, as ?service=NAME"
            )
        else:
            kept.append(part)
    shown = f"{scheme}://{user}{place}" + (mark + "&".join(kept) if any(kept) else "")
    return shown, unquote(password) if password else None


def withhold(study: str) -> str:
    """The study without its password, which moves to where PostgreSQL's clients find it."""
    if not is_url(study) and _MISTYPED.match(study):
        raise StudyError(
            "--study looks like PostgreSQL's, but is no URL: expected "
            "postgresql+psycopg://user@host:port/database, its password in PGPASSWORD"
        )
    shown, password = parted(study)
    if password is not None:
        os.environ["PGPASSWORD"] = password
    return shown


def without_passwords(text: str) -> str:
    """A message without the passwords of URLs that were typed where no study goes, or wrongly."""
    return _IN_QUERY.sub(r"\1...", _HIDDEN.sub(r"\1@", text))
