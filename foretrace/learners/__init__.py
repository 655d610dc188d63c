"""Learners: a model, its graph and a rule, ready to give gradients: one pure learner, and what holds its carry.

What holds the states of brainstate modules is imported when it is first used.
"""

from typing import TYPE_CHECKING, Any

from foretrace._optional import load
from foretrace.learners.comparing import ComparedGradient, GradientComparison, compare_gradients
from foretrace.learners.data import MultiStepData, SingleStepData
from foretrace.learners.learner import Carry, Learner
from foretrace.learners.synthesis import train_synthetic_gradient

if TYPE_CHECKING:
    from foretrace.learners.driver import SequenceDriverMixin
    from foretrace.learners.helpers import GradExpon, KappaFilter, PresynapticTrace
    from foretrace.learners.module import (
        EligibilityTrace,
        ETraceAlgorithm,
        ETraceVjpAlgorithm,
        HybridDimVjpAlgorithm,
        IODimVjpAlgorithm,
        ParamDimVjpAlgorithm,
        RandomProjectionVjpAlgorithm,
    )
    from foretrace.learners.vmap import ETraceVmap

__all__ = [
    "Carry",
    "ComparedGradient",
    "ETraceAlgorithm",
    "ETraceVjpAlgorithm",
    "ETraceVmap",
    "EligibilityTrace",
    "GradExpon",
    "GradientComparison",
    "HybridDimVjpAlgorithm",
    "IODimVjpAlgorithm",
    "KappaFilter",
    "Learner",
    "MultiStepData",
    "ParamDimVjpAlgorithm",
    "PresynapticTrace",
    "RandomProjectionVjpAlgorithm",
    "SequenceDriverMixin",
    "SingleStepData",
    "compare_gradients",
    "train_synthetic_gradient",
]

_HOLDERS = {
    "driver": "SequenceDriverMixin",
    "helpers": "GradExpon KappaFilter PresynapticTrace",
    "module": "EligibilityTrace ETraceAlgorithm ETraceVjpAlgorithm HybridDimVjpAlgorithm IODimVjpAlgorithm "
    "ParamDimVjpAlgorithm RandomProjectionVjpAlgorithm",
    "vmap": "ETraceVmap",
}
HOMES = {name: f"{__name__}.{file}" for file, names in _HOLDERS.items() for name in names.split()}
"""Where the names are that need brainstate."""


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(load(HOMES[name], f"foretrace.{name}"), name)
    return value
