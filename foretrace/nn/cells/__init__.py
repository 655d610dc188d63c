"""Recurrent cells: brainstate modules on the marked operators, one family in each file."""

from foretrace.nn.cells.base import Cell, Recurrent
from foretrace.nn.cells.gated import CFNCell, GRUCell, MGUCell
from foretrace.nn.cells.lru import LRUCell
from foretrace.nn.cells.memory import LSTMCell, URLSTMCell
from foretrace.nn.cells.minimal import MiniGRU, MiniLSTM
from foretrace.nn.cells.plain import MinimalRNNCell, ValinaRNNCell, VanillaRNNCell

__all__ = [
    "CFNCell",
    "Cell",
    "GRUCell",
    "LRUCell",
    "LSTMCell",
    "MGUCell",
    "MiniGRU",
    "MiniLSTM",
    "MinimalRNNCell",
    "Recurrent",
    "URLSTMCell",
    "ValinaRNNCell",
    "VanillaRNNCell",
]
