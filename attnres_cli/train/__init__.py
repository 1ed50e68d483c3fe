"""Training one run. Knows no SQL."""

from attnres_cli.train.checkpoint import Checkpoints, clear
from attnres_cli.train.device import cores, devices, settings
from attnres_cli.train.keeper import Keeper, Stop, Stopped
from attnres_cli.train.loop import train
from attnres_cli.train.trainer import Trainer, seconds_per_step
from attnres_cli.train.weights import differing

__all__ = [
    "Checkpoints",
    "Keeper",
    "Stop",
    "Stopped",
    "Trainer",
    "clear",
    "cores",
    "devices",
    "differing",
    "seconds_per_step",
    "settings",
    "train",
]
