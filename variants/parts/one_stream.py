"""One stream h of full width: sublayers read it as it is, and the output norm sees the last one."""

from __future__ import annotations

from attnres_cli.nn.residual import Hidden, Residual


class OneStream(Residual):
    """The state is the stream itself. A design says how an output is written: `write`."""

    def start(self, x: Hidden) -> Hidden:
        return x

    def read(self, state: Hidden, l: int) -> tuple[Hidden, Hidden]:
        return state, state

    def finish(self, state: Hidden) -> Hidden:
        return state
