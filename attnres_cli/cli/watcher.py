"""What tells on stderr how an experiment goes on: the lab's `Watcher`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from attnres_cli.console import say

if TYPE_CHECKING:
    from attnres_cli.records.plan import Plan
    from attnres_cli.records.run import Settings
    from attnres_cli.report.progress import Display


class OnStderr:
    """Prints lines and plans, and shows progress."""

    def note(self, line: str) -> None:
        """Print a line."""
        say(line)

    def plan(self, plan: Plan, title: str) -> None:
        """Print a plan that is about to be carried out."""
        from attnres_cli.report.terminal import print_plan

        print_plan(plan, sys.stderr, title)

    def text(self, lines: Sequence[str]) -> None:
        """Print what is about to be searched."""
        sys.stderr.writelines(f"{line}\n" for line in lines)

    def progress(
        self, n_runs: int, seconds: float | None, settings: Settings, *, seeks: bool = False
    ) -> AbstractContextManager[Display]:
        """A live table on a terminal, plain lines elsewhere."""
        from attnres_cli.report.progress import progress

        return progress(n_runs, seconds, settings, seeks=seeks)
