"""Where runs execute: worker processes on this machine, which take runs from the study."""

from attnres_cli.lab.workers.pool import run_all
from attnres_cli.lab.workers.provenance import made_with
from attnres_cli.lab.workers.worker import Job

__all__ = ["Job", "made_with", "run_all"]
