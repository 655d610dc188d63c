"""The learner class of each rule, and the names that people call the rules by."""

import inspect
from typing import Any

from foretrace import algorithms
from foretrace.algorithms import ETraceConfig
from foretrace.engine.rule import Rule
from foretrace.learners.module import (
    ETraceAlgorithm,
    ETraceVjpAlgorithm,
    HybridDimVjpAlgorithm,
    IODimVjpAlgorithm,
    ParamDimVjpAlgorithm,
    RandomProjectionVjpAlgorithm,
)


class D_RTRL(ParamDimVjpAlgorithm):
    __doc__ = algorithms.DRTRL.__doc__
    rule_class = algorithms.DRTRL


class pp_prop(IODimVjpAlgorithm):
    __doc__ = algorithms.PPProp.__doc__
    rule_class = algorithms.PPProp


class EProp(ParamDimVjpAlgorithm):
    __doc__ = algorithms.EProp.__doc__
    rule_class = algorithms.EProp


class OSTLRecurrent(ParamDimVjpAlgorithm):
    __doc__ = algorithms.OSTLRecurrent.__doc__
    rule_class = algorithms.OSTLRecurrent


class OSTLFeedforward(IODimVjpAlgorithm):
    __doc__ = algorithms.OSTLFeedforward.__doc__
    rule_class = algorithms.OSTLFeedforward


class OTTT(ETraceVjpAlgorithm):
    __doc__ = algorithms.OTTT.__doc__
    rule_class = algorithms.OTTT


class OTPE(ETraceVjpAlgorithm):
    __doc__ = algorithms.OTPE.__doc__
    rule_class = algorithms.OTPE


class OSTTP(ParamDimVjpAlgorithm):
    __doc__ = algorithms.OSTTP.__doc__
    rule_class = algorithms.OSTTP


class SnAp(ETraceVjpAlgorithm):
    __doc__ = algorithms.SnAp.__doc__
    rule_class = algorithms.SnAp


class RTRL(ETraceVjpAlgorithm):
    __doc__ = algorithms.RTRL.__doc__
    rule_class = algorithms.RTRL


class UORO(RandomProjectionVjpAlgorithm):
    __doc__ = algorithms.UORO.__doc__
    rule_class = algorithms.UORO


class ThreeFactor(ParamDimVjpAlgorithm):
    __doc__ = algorithms.ThreeFactor.__doc__
    rule_class = algorithms.ThreeFactor


class DNI(ETraceVjpAlgorithm):
    __doc__ = algorithms.DNI.__doc__
    rule_class = algorithms.DNI


class Hybrid(HybridDimVjpAlgorithm):
    __doc__ = algorithms.Hybrid.__doc__
    rule_class = algorithms.Hybrid


ES_D_RTRL = pp_prop

RULES: dict[str, type[ETraceAlgorithm]] = {
    "d_rtrl": D_RTRL,
    "pp_prop": pp_prop,
    "es_d_rtrl": pp_prop,
    "esd_rtrl": pp_prop,
    "e_prop": EProp,
    "eprop": EProp,
    "ostl_recurrent": OSTLRecurrent,
    "ostl_feedforward": OSTLFeedforward,
    "otpe": OTPE,
    "ottt": OTTT,
    "osttp": OSTTP,
    "snap": SnAp,
    "uoro": UORO,
    "three_factor": ThreeFactor,
    "dni": DNI,
    "rtrl": RTRL,
    "hybrid": Hybrid,
}


class ConfiguredAlgorithm(ETraceVjpAlgorithm):
    """A learner whose rule is given by its parts or as a record."""

    @classmethod
    def make_rule(cls, **options: Any) -> Rule:
        given = options.pop("rule")
        options = {name: value for name, value in options.items() if value is not None}
        if isinstance(given, ETraceConfig):
            return given.rule(**options)
        if options:
            raise TypeError(f"The rule {given!r} has its options already; got {', '.join(options)} beside it.")
        return given


def find_rule(algorithm: Any) -> tuple[type[ETraceAlgorithm], dict[str, Any]]:
    """The learner class that a user means, and the options that follow from it.

    Args:
        algorithm: A name, a learner class, an `ETraceConfig`, or a rule of `foretrace.algorithms`.

    Raises:
        ValueError: An unknown name; the message lists the known ones.
        TypeError: Anything else.
    """
    if isinstance(algorithm, str):
        if algorithm.lower() not in RULES:
            raise ValueError(f"There is no rule `{algorithm}`. The names are {', '.join(RULES)}.")
        return RULES[algorithm.lower()], {}
    if inspect.isclass(algorithm) and issubclass(algorithm, ETraceAlgorithm):
        return algorithm, {}
    if isinstance(algorithm, (ETraceConfig, Rule)):
        return ConfiguredAlgorithm, {"rule": algorithm}
    raise TypeError(
        f"A rule is a name such as 'D_RTRL', a class such as `foretrace.D_RTRL`, or an `ETraceConfig`; "
        f"got {algorithm!r}."
    )
