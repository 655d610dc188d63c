"""Learners: a model, its graph and a rule, ready to give gradients; one kind for each kind of model."""

from foretrace.learners.data import MultiStepData, SingleStepData
from foretrace.learners.driver import SequenceDriverMixin
from foretrace.learners.executor import ETraceGraphExecutor, ETraceVjpGraphExecutor
from foretrace.learners.function import Carry, FunctionLearner
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
    DNI,
    ES_D_RTRL,
    OSTTP,
    OTPE,
    OTTT,
    RTRL,
    RULES,
    UORO,
    D_RTRL,
    EProp,
    Hybrid,
    OSTLFeedforward,
    OSTLRecurrent,
    SnAp,
    ThreeFactor,
    find_rule,
    pp_prop,
)

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
    "EProp",
    "ETraceAlgorithm",
    "ETraceGraphExecutor",
    "ETraceVjpAlgorithm",
    "ETraceVjpGraphExecutor",
    "EligibilityTrace",
    "FunctionLearner",
    "Hybrid",
    "HybridDimVjpAlgorithm",
    "IODimVjpAlgorithm",
    "MultiStepData",
    "OSTLFeedforward",
    "OSTLRecurrent",
    "ParamDimVjpAlgorithm",
    "RandomProjectionVjpAlgorithm",
    "SequenceDriverMixin",
    "SingleStepData",
    "SnAp",
    "ThreeFactor",
    "find_rule",
    "pp_prop",
]
