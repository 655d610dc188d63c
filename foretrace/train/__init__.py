"""Training: `fit` for tasks, `stream` for what does not end, checkpoints, metrics, and networks as published."""

from foretrace.train.best import Best
from foretrace.train.checkpoint import Checkpoint, CheckpointError, CheckpointWarning, read, restore, save
from foretrace.train.fit import fit
from foretrace.train.iteration import TrainState
from foretrace.train.lock import FolderInUseError
from foretrace.train.networks import CELLS, PUBLISHED, Network, Published, network
from foretrace.train.parts import Output
from foretrace.train.result import DivergedError, Result, Terminated
from foretrace.train.streaming.entry import stream, stream_async
from foretrace.train.streaming.learning import StreamState
from foretrace.train.streaming.result import StreamError, StreamResult, StreamStep

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
    "StreamError",
    "StreamResult",
    "StreamState",
    "StreamStep",
    "Terminated",
    "TrainState",
    "fit",
    "network",
    "read",
    "restore",
    "save",
    "stream",
    "stream_async",
]
