"""What is found under `foretrace.nn`: every name, where it comes from, and what happens without brainpy."""

import inspect
import rlcompleter
import subprocess
import sys

import brainpy.state
import brainstate
import pytest

from foretrace import nn
from foretrace.nn import _found

KINDS = (brainpy.state.Neuron, brainpy.state.Synapse)

# Names that scripts of the field look up here.
LISTED = """
ALIF AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d Alpha
AvgPool1d AvgPool2d AvgPool3d BatchNorm0d BatchNorm1d BatchNorm2d BatchNorm3d CELU CFNCell Conv1d Conv2d Conv3d Dropout
Dropout1d Dropout2d Dropout3d DualExpon ELU Embedding Expon Flatten GELU GLU GRUCell GroupNorm GroupedLinear Hardshrink
Hardsigmoid Hardswish Hardtanh IF Identity LIF LRUCell LSTMCell LayerNorm LeakyRateReadout LeakyReLU LeakySpikeReadout
Linear LoRA LogSigmoid LogSoftmax MGUCell MaxPool1d MaxPool2d MaxPool3d MiniGRU MiniLSTM MinimalRNNCell Mish PReLU
RMSNorm RReLU ReLU ReLU6 SELU STD STP ScaledWSLinear SiLU Sigmoid SignedWLinear Softmax Softmax2d Softmin Softplus
Softshrink Softsign SparseLinear SpikeBitwise Tanh Tanhshrink URLSTMCell Unflatten ValinaRNNCell VanillaRNNCell
""".split()

WITHOUT_BRAINPY = """
import sys
sys.modules["brainpy"] = None  # as if it were not installed
from foretrace.nn import *
from foretrace import nn
print(Linear.__name__, Dropout.__name__, "LIF" in dir(nn), "LIF" in nn.__all__)
print([name for name in sys.modules if name.startswith("brainpy") and sys.modules[name]])
try:
    nn.LIF
except ImportError as error:
    print(error)
"""


def test_all_names_are_there_and_documented() -> None:
    assert set(LISTED) <= set(nn.__all__) <= set(dir(nn))
    for name in nn.__all__:
        value = getattr(nn, name)
        assert inspect.getdoc(value), name
        assert callable(value), name


def test_no_name_stands_twice() -> None:
    assert len(nn.__all__) == len(set(nn.__all__))


def test_neurons_and_synapses_are_those_of_brainpy() -> None:
    assert nn.LIF is brainpy.state.LIF
    assert nn.GIF is nn.Gif is brainpy.state.Gif
    public = [getattr(brainpy.state, name) for name in brainpy.state.__all__]
    kinds = {kind for kind in public if inspect.isclass(kind) and issubclass(kind, KINDS)}
    named_like_nest = {
        kind for kind in kinds if kind.__name__.islower() or "NEST" in kind.__name__ or "_" in kind.__name__
    }
    assert {kind.__name__ for kind in kinds - named_like_nest} <= _found.BRAINPY


def test_layers_without_parameters_are_those_of_brainstate() -> None:
    for name in _found.BRAINSTATE:
        assert getattr(nn, name) is getattr(brainstate.nn, name)


def test_completion_shows_what_was_not_used_yet() -> None:
    completer = rlcompleter.Completer({"nn": nn})
    assert {"nn.MorrisLecar", "nn.MaxPool1d", "nn.MGUCell"} <= {
        match.rstrip("(") for match in completer.attr_matches("nn.M")
    }


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'LIFF'"):
        _ = nn.LIFF


def test_without_brainpy_the_extra_is_named() -> None:
    call = [sys.executable, "-W", "error", "-c", WITHOUT_BRAINPY]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    names, imported, message = done.stdout.splitlines()
    assert names == "Linear Dropout True False"
    assert imported == "[]"
    assert message.startswith("foretrace.nn.LIF is brainpy.state.LIF: pip install 'foretrace[models]'")
