"""The table of models: what the compiler must find in each, and something to train for everything above it."""

from .bare_states import bare_states
from .buffers import buffers
from .control import control
from .lookups import lookups
from .marked import marked
from .modules import modules
from .neurons import neurons
from .packed import packed
from .positions import positions
from .rates import rates
from .records import Expected, Model, inputs
from .run import as_step, backpropagated, initialised
from .spiking import spiking
from .weights import weights

TABLES = (rates, bare_states, spiking, weights, lookups, positions, control, marked, modules, neurons, packed, buffers)
MODELS: tuple[Model, ...] = tuple(model for table in TABLES for model in table.models)

__all__ = ["MODELS", "Expected", "Model", "as_step", "backpropagated", "initialised", "inputs"]
