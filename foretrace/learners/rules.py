"""The learner class of each rule, and the names that people call the rules by."""

import dataclasses
import difflib
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
from foretrace.learners.options import rule_of_config


def _documented(rule: type[Rule], options: str = "") -> str:
    """The words of a rule, with an example of its learner."""
    return f"""{rule.__doc__}
    Examples:
        >>> import brainstate, jax.numpy as jnp
        >>> import foretrace as ft
        >>> cell = brainstate.nn.GRUCell(3, 4)
        >>> learner = ft.compile(cell, "{rule.name}", jnp.ones(3){options})
        >>> learner.rule.name
        '{rule.name}'
    """


class D_RTRL(ParamDimVjpAlgorithm):
    __doc__ = _documented(algorithms.DRTRL)
    rule_class = algorithms.DRTRL


class pp_prop(IODimVjpAlgorithm):
    __doc__ = _documented(algorithms.PPProp, ", decay_or_rank=0.9")
    rule_class = algorithms.PPProp


class EProp(ParamDimVjpAlgorithm):
    __doc__ = _documented(algorithms.EProp, ', feedback="random", kappa_filter_decay=0.9')
    rule_class = algorithms.EProp


class OSTLRecurrent(ParamDimVjpAlgorithm):
    __doc__ = _documented(algorithms.OSTLRecurrent)
    rule_class = algorithms.OSTLRecurrent


class OSTLFeedforward(IODimVjpAlgorithm):
    __doc__ = _documented(algorithms.OSTLFeedforward)
    rule_class = algorithms.OSTLFeedforward


class OTTT(ETraceVjpAlgorithm):
    __doc__ = _documented(algorithms.OTTT, ', mode="O", leak=0.9')
    rule_class = algorithms.OTTT


class OTPE(ETraceVjpAlgorithm):
    __doc__ = _documented(algorithms.OTPE, ', mode="approx", leak=0.9')
    rule_class = algorithms.OTPE


class OSTTP(ParamDimVjpAlgorithm):
    __doc__ = _documented(algorithms.OSTTP, ", B_list=[jnp.ones((2, 4))]")
    rule_class = algorithms.OSTTP


class SnAp(ETraceVjpAlgorithm):
    __doc__ = _documented(algorithms.SnAp, ", n=1")
    rule_class = algorithms.SnAp


class RTRL(ETraceVjpAlgorithm):
    __doc__ = _documented(algorithms.RTRL)
    rule_class = algorithms.RTRL


class UORO(RandomProjectionVjpAlgorithm):
    __doc__ = _documented(algorithms.UORO, ", projection_key=7")
    rule_class = algorithms.UORO


class ThreeFactor(ParamDimVjpAlgorithm):
    __doc__ = _documented(algorithms.ThreeFactor, ", modulator=1.0")
    rule_class = algorithms.ThreeFactor


class DNI(ETraceVjpAlgorithm):
    __doc__ = _documented(algorithms.DNI, ", synthesizer=ft.SyntheticGradient()")
    rule_class = algorithms.DNI

    @property
    def synthesizer(self) -> Any:
        """What foretells the gradient to come, or None."""
        return self.rule.synthesizer  # type: ignore[attr-defined]

    def group_signal_shapes(self) -> dict[int, tuple[int, ...]]:
        """The shape of what is foretold for each group, by its index: `(*varshape, num_state)`."""
        return {group.index: (*group.varshape, group.num_state) for group in self.graph.hidden_groups}

    def attach_synthesizer(self, synthesizer: Any) -> None:
        """Takes another synthesiser, with its parameters as it begins them.

        Args:
            synthesizer: A `SyntheticGradient`, or anything with its `init` and `apply`.
        """
        self.replace_rule(dataclasses.replace(self.rule, synthesizer=synthesizer))  # type: ignore[type-var]


class Hybrid(HybridDimVjpAlgorithm):
    __doc__ = _documented(algorithms.Hybrid, ", decay_or_rank=0.9")
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
        options.pop("fast_solve", None)
        if isinstance(given, ETraceConfig):
            return rule_of_config("The rule of the config", given, options)
        options = {name: value for name, value in options.items() if value is not None}
        if options:
            raise TypeError(f"The rule {given!r} has its options already; got {', '.join(options)} beside it.")
        return given


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "").replace(" ", "")


def find_rule(algorithm: Any) -> tuple[type[ETraceAlgorithm], dict[str, Any]]:
    """The learner class that a user means, and the options that follow from it.

    Args:
        algorithm: A name, in any case, with underscores, hyphens or neither; a learner class, an `ETraceConfig`, or a
            rule of `foretrace.algorithms`.

    Raises:
        ValueError: An unknown name; the message lists the known ones.
        TypeError: Anything else.
    """
    if isinstance(algorithm, str):
        found = {_plain(name): learner for name, learner in RULES.items()}.get(_plain(algorithm))
        if found is None:
            near = difflib.get_close_matches(_plain(algorithm), {_plain(name): name for name in RULES}, n=1)
            meant = f" Did you mean `{next(n for n in RULES if _plain(n) == near[0])}`?" if near else ""
            raise ValueError(f"There is no rule `{algorithm}`.{meant} The names are {', '.join(RULES)}.")
        return found, {}
    if inspect.isclass(algorithm) and issubclass(algorithm, ETraceAlgorithm):
        return algorithm, {}
    if isinstance(algorithm, (ETraceConfig, Rule)):
        return ConfiguredAlgorithm, {"rule": algorithm}
    raise TypeError(
        f"A rule is a name such as 'D_RTRL', a class such as `foretrace.D_RTRL`, or an `ETraceConfig`; "
        f"got {algorithm!r}."
    )
