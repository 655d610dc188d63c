"""Modules of other libraries that are found through `foretrace.nn`, name by name.

`BRAINSTATE` lists what is taken from `brainstate.nn`: layers that have no parameters of their own. `BRAINPY` lists the
neurons, synapses and what goes with them in `brainpy.state`. The latter is an optional extra and slow to import, so its
names are looked up when they are first asked for.
"""

import importlib
import importlib.util
from typing import Any

from foretrace._optional import load

load("brainstate", "foretrace.nn")  # without a change to JAX's precision; or it says what to install

BRAINSTATE = frozenset(
    """
    AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d
    AvgPool1d AvgPool2d AvgPool3d LPPool1d LPPool2d LPPool3d MaxPool1d MaxPool2d MaxPool3d
    MaxUnpool1d MaxUnpool2d MaxUnpool3d

    AlphaDropout Dropout Dropout1d Dropout2d Dropout3d DropoutFixed FeatureAlphaDropout

    CELU ELU GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh Identity LeakyReLU LogSigmoid LogSoftmax Mish RReLU
    ReLU ReLU6 SELU SiLU Sigmoid Softmax Softmax2d Softmin Softplus Softshrink Softsign SpikeBitwise Tanh Tanhshrink
    Threshold

    CircularPad1d CircularPad2d CircularPad3d ConstantPad1d ConstantPad2d ConstantPad3d
    ReflectionPad1d ReflectionPad2d ReflectionPad3d ReplicationPad1d ReplicationPad2d ReplicationPad3d
    ZeroPad1d ZeroPad2d ZeroPad3d

    Flatten Sequential Unflatten
    """.split()
)

BRAINPY = frozenset(
    """
    Dynamics Neuron Synapse

    ALIF AdExIF AdExIFRef AdQuaIF AdQuaIFRef CobaLIF CubaLIF ExpIF ExpIFRef FitzHughNagumo Gif GifRef HH HindmarshRose
    IF Izhikevich IzhikevichRef LIF LIFRef MorrisLecar QuaIF WangBuzsakiHH

    AMPA Alpha BioNMDA COBA CUBA DualExpon Expon GABAa MgBlock STD STP SynOut

    AlignPostProj AsymmetryGapJunction CurrentProj DeltaProj Projection SymmetryGapJunction
    align_post_projection align_pre_projection

    ConstantInput OUProcessInput PoissonEncoder PoissonInput PoissonSpike RampInput SectionInput SinusoidalInput
    SpikeTime StepInput WienerProcessInput poisson_input
    """.split()
)

ALIASES = {"GIF": "Gif", "GIFRef": "GifRef"}
"""Spellings like those of the other neurons."""

HOMES: dict[str, tuple[str, str]] = {
    **{name: ("brainstate.nn", name) for name in BRAINSTATE},
    **{name: ("brainpy.state", name) for name in BRAINPY},
    **{name: ("brainpy.state", other) for name, other in ALIASES.items()},
}
"""For each name, the module that has it and its name there."""


def available() -> list[str]:
    """The names that can be had without installing anything more."""
    missing = importlib.util.find_spec("brainpy") is None
    return sorted(name for name, (home, _) in HOMES.items() if not (missing and home.startswith("brainpy")))


def find(name: str) -> Any:
    """The class that a name of the table stands for.

    Args:
        name: A name of `HOMES`.

    Raises:
        ImportError: The library that has it is not installed, or is too old.
    """
    home, own = HOMES[name]
    try:
        return getattr(importlib.import_module(home), own)
    except (ImportError, AttributeError) as error:
        raise ImportError(f"foretrace.nn.{name} is {home}.{own}: pip install 'foretrace[models]' ({error})") from error
