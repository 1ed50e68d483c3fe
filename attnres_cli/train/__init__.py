"""Training one run. Knows no SQL."""

from attnres_cli.train.checkpoint import Checkpoints
from attnres_cli.train.device import cores, devices, settings
from attnres_cli.train.keeper import Keeper, Stop, Stopped
from attnres_cli.train.loop import train
from attnres_cli.train.trainer import Trainer, seconds_per_step

__all__ = [
    "Checkpoints",
    "Keeper",
    "Stop",
    "Stopped",
    "Trainer",
    "cores",
    "devices",
    "seconds_per_step",
    "settings",
    "train",
]
