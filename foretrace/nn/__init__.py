"""Layers, cells, neurons and readouts: brainstate modules on the marked operators.

Every parameter of a layer here is traced where it reaches a state directly. Neurons and synapses of `brainpy.state`,
and what has no parameters in `brainstate.nn` (pooling, dropout, activations, padding), are found here as well. Those of
`brainpy.state` need the extra `models` (`pip install 'foretrace[models]'`) and are imported when they are first used.

Examples:
    >>> import brainstate
    >>> import jax.numpy as jnp
    >>> from foretrace import nn
    >>> net = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm((8,)), nn.GRUCell(8, 4), nn.ReLU())
    >>> _ = brainstate.nn.init_all_states(net, batch_size=2)
    >>> net(jnp.ones((2, 3))).shape
    (2, 4)
"""

from foretrace.nn import _found  # isort: skip  (it imports brainstate, before any layer does)

from typing import Any

from foretrace.nn.cells import (
    CFNCell,
    GRUCell,
    LRUCell,
    LSTMCell,
    MGUCell,
    MiniGRU,
    MiniLSTM,
    MinimalRNNCell,
    URLSTMCell,
    ValinaRNNCell,
    VanillaRNNCell,
)
from foretrace.nn.conv import Conv1d, Conv2d, Conv3d
from foretrace.nn.embedding import Embedding
from foretrace.nn.linear import GroupedLinear, Linear, LoRA, ScaledWSLinear, SignedWLinear, SparseLinear
from foretrace.nn.neurons import LearnableConstant, learnable
from foretrace.nn.norm import (
    BatchNorm0d,
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    LayerNorm,
    RMSNorm,
    ScaleAndBias,
)
from foretrace.nn.prelu import PReLU
from foretrace.nn.readout import LeakyRateReadout, LeakySpikeReadout

__all__ = [
    "BatchNorm0d",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "CFNCell",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "Embedding",
    "GRUCell",
    "GroupNorm",
    "GroupedLinear",
    "LRUCell",
    "LSTMCell",
    "LayerNorm",
    "LeakyRateReadout",
    "LeakySpikeReadout",
    "LearnableConstant",
    "Linear",
    "LoRA",
    "MGUCell",
    "MiniGRU",
    "MiniLSTM",
    "MinimalRNNCell",
    "PReLU",
    "RMSNorm",
    "ScaleAndBias",
    "ScaledWSLinear",
    "SignedWLinear",
    "SparseLinear",
    "URLSTMCell",
    "ValinaRNNCell",
    "VanillaRNNCell",
    "learnable",
]
__all__ += _found.available()  # without brainpy its names are left out, so that `import *` works


def __getattr__(name: str) -> Any:
    """Looks up a name of another library when it is first used."""
    if name not in _found.HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = _found.find(name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """All names, also those whose library is not installed."""
    return sorted({*globals(), *__all__, *_found.HOMES})
