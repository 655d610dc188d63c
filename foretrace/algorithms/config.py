"""A rule by its parts: what traces it keeps, what carries them, what they are multiplied by.

A rule of this package is one choice for each part. `ETraceConfig` names the choices and finds the rule; a combination
that no rule stands for is refused, with those that some rule does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from foretrace.algorithms.d_rtrl import DRTRL
from foretrace.algorithms.dni import DNI
from foretrace.algorithms.eprop import EProp
from foretrace.algorithms.ostl import OSTLRecurrent
from foretrace.algorithms.otpe import OTPE
from foretrace.algorithms.ottt import OTTT
from foretrace.algorithms.pp_prop import PPProp
from foretrace.algorithms.snap import SnAp
from foretrace.algorithms.three_factor import ThreeFactor
from foretrace.algorithms.uoro import UORO
from foretrace.engine.rule import Rule

PARTS: dict[str, tuple[str, ...]] = {
    "trace_factorization": ("per_param", "io_factorized", "random_projection"),
    "temporal_recursion": ("jacobian", "scalar_leak", "none"),
    "recurrence_scope": ("diagonal", "coupled", "sparse_n"),
    "learning_signal": ("symmetric", "random_feedback", "modulatory", "bootstrapped"),
    "trace_filter": ("none", "kappa"),
}

Combination = tuple[str, str, str, str, str]


@dataclass(frozen=True)
class ETraceConfig:
    """A learning rule by its parts.

    Attributes:
        trace_factorization: A trace `per_param`, in two factors (`io_factorized`), or by one `random_projection`.
        temporal_recursion: What carries a trace on: the `jacobian` of the transition, a `scalar_leak`, or `none`.
        recurrence_scope: Which part of the Jacobian: `diagonal` (direct paths), `coupled` (taken after the mixing), or
            `sparse_n` (all that is reached within `sparse_n` steps). A random projection follows the whole in any case.
        learning_signal: `symmetric` (the loss's derivative), `random_feedback`, `modulatory` (given from outside), or
            `bootstrapped` (a synthetic gradient).
        trace_filter: Whether traces are low-passed with `kappa`.
        decay: The leak, or for factored traces the decay or rank.
        kappa: The decay of the filter.
        sparse_n: Number of steps for `sparse_n`.

    Examples:
        >>> ETraceConfig(trace_factorization="io_factorized", decay=0.9).rule()
        PPProp(decay_or_rank=0.9)
    """

    trace_factorization: str = "per_param"
    temporal_recursion: str = "jacobian"
    recurrence_scope: str = "diagonal"
    learning_signal: str = "symmetric"
    trace_filter: str = "none"
    decay: Any = None
    kappa: float | None = None
    sparse_n: int | None = None

    def __post_init__(self) -> None:
        for part, choices in PARTS.items():
            if getattr(self, part) not in choices:
                raise ValueError(f"`{part}` is one of {', '.join(choices)}; got {getattr(self, part)!r}.")
        if self.combination not in _RULES:
            raise ValueError(f"No rule has {_words(self.combination)}. These have a meaning:\n{_table()}")
        for needed in _NEEDS.get(self.combination, ()):
            if getattr(self, needed) is None:
                raise ValueError(f"{_words(self.combination)} needs `{needed}`: give its value.")

    @property
    def combination(self) -> Combination:
        """The choices, in the order of the parts."""
        return (
            self.trace_factorization,
            self.temporal_recursion,
            self.recurrence_scope,
            self.learning_signal,
            self.trace_filter,
        )

    def rule(self, **options: Any) -> Rule:
        """The rule that these parts make, with further options of its own."""
        return _RULES[self.combination](self, options)


def _made(rule: Callable[..., Rule], **from_config: str) -> Callable[[ETraceConfig, dict[str, Any]], Rule]:
    def make(config: ETraceConfig, options: dict[str, Any]) -> Rule:
        return rule(**{option: getattr(config, name) for option, name in from_config.items()}, **options)

    return make


def _random(config: ETraceConfig, options: dict[str, Any]) -> Rule:
    return EProp(feedback="random", kappa_filter_decay=config.kappa or 0.0, **options)


_RULES: dict[Combination, Callable[[ETraceConfig, dict[str, Any]], Rule]] = {
    ("per_param", "jacobian", "diagonal", "symmetric", "none"): _made(DRTRL),
    ("per_param", "jacobian", "diagonal", "symmetric", "kappa"): _made(EProp, kappa_filter_decay="kappa"),
    ("per_param", "jacobian", "diagonal", "random_feedback", "none"): _random,
    ("per_param", "jacobian", "diagonal", "random_feedback", "kappa"): _random,
    ("per_param", "jacobian", "diagonal", "modulatory", "none"): _made(ThreeFactor),
    ("per_param", "jacobian", "coupled", "symmetric", "none"): _made(OSTLRecurrent),
    ("per_param", "jacobian", "sparse_n", "symmetric", "none"): _made(SnAp, n="sparse_n"),
    ("per_param", "scalar_leak", "diagonal", "symmetric", "none"): _made(OTPE, leak="decay"),
    ("per_param", "none", "diagonal", "bootstrapped", "none"): _made(DNI),
    ("io_factorized", "jacobian", "diagonal", "symmetric", "none"): _made(PPProp, decay_or_rank="decay"),
    ("io_factorized", "scalar_leak", "diagonal", "symmetric", "none"): _made(OTTT, leak="decay"),
    ("random_projection", "jacobian", "diagonal", "symmetric", "none"): _made(UORO),
    ("random_projection", "jacobian", "coupled", "symmetric", "none"): _made(UORO),
}

_NEEDS: dict[Combination, tuple[str, ...]] = {
    ("per_param", "jacobian", "diagonal", "symmetric", "kappa"): ("kappa",),
    ("per_param", "jacobian", "diagonal", "random_feedback", "kappa"): ("kappa",),
    ("per_param", "jacobian", "sparse_n", "symmetric", "none"): ("sparse_n",),
    ("per_param", "scalar_leak", "diagonal", "symmetric", "none"): ("decay",),
    ("io_factorized", "jacobian", "diagonal", "symmetric", "none"): ("decay",),
    ("io_factorized", "scalar_leak", "diagonal", "symmetric", "none"): ("decay",),
}


def _words(combination: Combination) -> str:
    return ", ".join(f"{part}={choice!r}" for part, choice in zip(PARTS, combination, strict=True))


def _table() -> str:
    return "\n".join(f"  {_words(combination)}" for combination in _RULES)
