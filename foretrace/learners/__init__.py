"""Learners: a model, its graph and a rule, ready to give gradients; one kind for each kind of model."""

from foretrace.learners.comparing import ComparedGradient, GradientComparison, compare_gradients
from foretrace.learners.data import MultiStepData, SingleStepData
from foretrace.learners.driver import SequenceDriverMixin
from foretrace.learners.executor import ETraceGraphExecutor, ETraceVjpGraphExecutor
from foretrace.learners.function import Carry, FunctionLearner
from foretrace.learners.helpers import GradExpon, KappaFilter, PresynapticTrace, train_synthetic_gradient
from foretrace.learners.module import (
    EligibilityTrace,
    ETraceAlgorithm,
    ETraceVjpAlgorithm,
    HybridDimVjpAlgorithm,
    IODimVjpAlgorithm,
    ParamDimVjpAlgorithm,
    RandomProjectionVjpAlgorithm,
)
from foretrace.learners.rules import (
    D_RTRL,
    DNI,
    ES_D_RTRL,
    OSTTP,
    OTPE,
    OTTT,
    RTRL,
    RULES,
    UORO,
    EProp,
    Hybrid,
    OSTLFeedforward,
    OSTLRecurrent,
    SnAp,
    ThreeFactor,
    find_rule,
    pp_prop,
)
from foretrace.learners.vmap import ETraceVmap

__all__ = [
    "DNI",
    "D_RTRL",
    "ES_D_RTRL",
    "OSTTP",
    "OTPE",
    "OTTT",
    "RTRL",
    "RULES",
    "UORO",
    "Carry",
    "ComparedGradient",
    "EProp",
    "ETraceAlgorithm",
    "ETraceGraphExecutor",
    "ETraceVjpAlgorithm",
    "ETraceVjpGraphExecutor",
    "ETraceVmap",
    "EligibilityTrace",
    "FunctionLearner",
    "GradExpon",
    "GradientComparison",
    "Hybrid",
    "HybridDimVjpAlgorithm",
    "IODimVjpAlgorithm",
    "KappaFilter",
    "MultiStepData",
    "OSTLFeedforward",
    "OSTLRecurrent",
    "ParamDimVjpAlgorithm",
    "PresynapticTrace",
    "RandomProjectionVjpAlgorithm",
    "SequenceDriverMixin",
    "SingleStepData",
    "SnAp",
    "ThreeFactor",
    "compare_gradients",
    "find_rule",
    "pp_prop",
    "train_synthetic_gradient",
]
