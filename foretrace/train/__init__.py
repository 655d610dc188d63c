"""Training: `fit` for every kind of learner, checkpoints, metrics, and networks with published settings."""

from foretrace.train.best import Best
from foretrace.train.checkpoint import Checkpoint, CheckpointError, CheckpointWarning, read, restore, save
from foretrace.train.fit import fit
from foretrace.train.iteration import TrainState
from foretrace.train.lock import FolderInUseError
from foretrace.train.networks import CELLS, PUBLISHED, Network, Published, network
from foretrace.train.parts import Output
from foretrace.train.result import DivergedError, Result, Terminated

__all__ = [
    "CELLS",
    "PUBLISHED",
    "Best",
    "Checkpoint",
    "CheckpointError",
    "CheckpointWarning",
    "DivergedError",
    "FolderInUseError",
    "Network",
    "Output",
    "Published",
    "Result",
    "Terminated",
    "TrainState",
    "fit",
    "network",
    "read",
    "restore",
    "save",
]
