"""What workers need, imported once: by the process that CPU workers are copied from. Each of them
would take two seconds for it.
"""

from __future__ import annotations

from contextlib import suppress

import numpy.random  # noqa: F401
import safetensors.torch  # noqa: F401
import torch._dynamo  # noqa: F401 - by the first optimiser that is made

from attnres_cli.errors import AttnresError
from attnres_cli.lab.workers import pool  # noqa: F401
from attnres_cli.lab.workers.provenance import remember_code

with suppress(AttnresError):  # of somebody's package or file of designs: a worker tells of it
    remember_code()
