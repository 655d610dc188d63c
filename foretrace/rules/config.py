"""A rule by its parts: what traces it keeps, what carries them, what they are multiplied by.

A rule of this package is one choice for each part. `ETraceConfig` names the choices and finds the rule; a combination
that no rule stands for is refused, with those that some rule does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from foretrace._checks import require_choice
from foretrace.rules.d_rtrl import D_RTRL
from foretrace.rules.dni import DNI
from foretrace.rules.eprop import EProp
from foretrace.rules.ostl import OSTLFeedforward, OSTLRecurrent
from foretrace.rules.otpe import OTPE
from foretrace.rules.ottt import OTTT
from foretrace.rules.pp_prop import pp_prop
from foretrace.rules.rule import Rule
from foretrace.rules.snap import SnAp
from foretrace.rules.three_factor import ThreeFactor
from foretrace.rules.uoro import UORO

PARTS: dict[str, tuple[str, ...]] = {
    "trace_factorization": ("per_param", "io_factorized", "random_projection"),
    "temporal_recursion": ("jacobian", "scalar_leak", "none"),
    "recurrence_scope": ("diagonal", "coupled", "sparse_n"),
    "learning_signal": ("symmetric", "random_feedback", "modulatory", "bootstrapped"),
    "trace_filter": ("none", "kappa"),
}

COEFFICIENTS = ("decay", "kappa", "sparse_n")

# What carries each factor of a factored trace, for those who name both; the first one always leaks.
_PAIRS: dict[tuple[str, str], str] = {
    ("scalar_leak", "jacobian"): "jacobian",
    ("scalar_leak", "scalar_leak"): "scalar_leak",
}

Combination = tuple[str, str, str, str, str]


@dataclass(frozen=True)
class ETraceConfig:
    """A learning rule by its parts.

    Attributes:
        trace_factorization: A trace `per_param`, in two factors (`io_factorized`), or by one `random_projection`.
        temporal_recursion: What carries a trace on: the `jacobian` of the transition, a `scalar_leak`, or `none`. For
            factored traces a pair may name both: `("scalar_leak", "jacobian")` is `"jacobian"` there.
        recurrence_scope: Which part of the Jacobian: `diagonal` (direct paths), `coupled` (taken after the mixing), or
            `sparse_n` (all that is reached within `sparse_n` steps). A random projection follows the whole in any case.
        learning_signal: `symmetric` (the loss's derivative), `random_feedback`, `modulatory` (given from outside), or
            `bootstrapped` (a synthetic gradient of what is to come, in the place of a trace of what was).
        trace_filter: Whether traces are low-passed with `kappa`.
        update_schedule: Only `per_step`. When weights change is said where they do: see `etrace_train`.
        decay: The leak, or for factored traces the decay or rank.
        kappa: The decay of the filter.
        sparse_n: Number of steps for `sparse_n`.
        window_size: Only None. Windows of exact credit are said by `chunk_size` of `etrace_grad`.

    Raises:
        ValueError: No such choice, no such combination, a coefficient that is needed and missing or given and unused.

    Examples:
        >>> ETraceConfig(trace_factorization="io_factorized", decay=0.9).rule()
        pp_prop(decay_or_rank=0.9)
    """

    trace_factorization: str = "per_param"
    temporal_recursion: str | tuple[str, str] = "jacobian"
    recurrence_scope: str = "diagonal"
    learning_signal: str = "symmetric"
    trace_filter: str = "none"
    update_schedule: str = "per_step"
    decay: Any = None
    kappa: float | None = None
    sparse_n: int | None = None
    window_size: int | None = None

    def __post_init__(self) -> None:
        is_per_step = isinstance(self.update_schedule, str) and self.update_schedule == "per_step"
        if not is_per_step or self.window_size is not None:
            raise ValueError(
                f"A rule gives gradients at every step; `update_schedule={self.update_schedule!r}` with "
                f"`window_size={self.window_size!r}` is no part of it. Say when weights change by `update_every` of "
                "`etrace_train`, and windows of exact credit by `chunk_size` of `etrace_grad`."
            )
        if isinstance(self.temporal_recursion, tuple | list):
            object.__setattr__(self, "temporal_recursion", self._recursion_of_pair())
        for part, choices in PARTS.items():
            require_choice(part, getattr(self, part), choices)
        if self.combination not in _RULES:
            raise ValueError(f"No rule has {_words(self.combination)}. These have a meaning:\n{_table()}")
        for needed in _NEEDS.get(self.combination, ()):
            if getattr(self, needed) is None:
                raise ValueError(f"{_words(self.combination)} needs `{needed}`: give its value.")
        unused = [name for name in COEFFICIENTS if name not in _NEEDS.get(self.combination, ())]
        for name in unused:
            if getattr(self, name) is not None:
                raise ValueError(f"{_words(self.combination)} has no use for `{name}={getattr(self, name)!r}`.")

    def _recursion_of_pair(self) -> str:
        pair = tuple(self.temporal_recursion)
        if self.trace_factorization != "io_factorized" or pair not in _PAIRS:
            raise ValueError(
                f"`temporal_recursion` is a pair for factored traces alone, one of {', '.join(map(str, _PAIRS))}; got "
                f"{pair} with trace_factorization={self.trace_factorization!r}."
            )
        return _PAIRS[pair]

    @property
    def combination(self) -> Combination:
        """The choices, in the order of the parts."""
        return (
            self.trace_factorization,
            str(self.temporal_recursion),
            self.recurrence_scope,
            self.learning_signal,
            self.trace_filter,
        )

    def rule(self, **options: Any) -> Rule:
        """The rule that these parts make, with further options of its own."""
        return _RULES[self.combination](self, options)


def config_of(rule: Rule) -> ETraceConfig:
    """The parts of a rule.

    Raises:
        AttributeError: No combination of parts stands for the rule.

    Examples:
        >>> config_of(SnAp(n=3)).sparse_n
        3
    """
    parts = _PARTS_OF.get(type(rule), lambda _: None)(rule)
    if parts is None:
        raise AttributeError(f"No `ETraceConfig` describes {rule!r}. Its options are attributes of `learner.rule`.")
    return ETraceConfig(**parts)


def _made(rule: Callable[..., Rule], **from_config: str) -> Callable[[ETraceConfig, dict[str, Any]], Rule]:
    def make(config: ETraceConfig, options: dict[str, Any]) -> Rule:
        return rule(**{option: getattr(config, name) for option, name in from_config.items()}, **options)

    return make


def _random(config: ETraceConfig, options: dict[str, Any]) -> Rule:
    return EProp(feedback="random", kappa_filter_decay=config.kappa or 0.0, **options)


_RULES: dict[Combination, Callable[[ETraceConfig, dict[str, Any]], Rule]] = {
    ("per_param", "jacobian", "diagonal", "symmetric", "none"): _made(D_RTRL),
    ("per_param", "jacobian", "diagonal", "symmetric", "kappa"): _made(EProp, kappa_filter_decay="kappa"),
    ("per_param", "jacobian", "diagonal", "random_feedback", "none"): _random,
    ("per_param", "jacobian", "diagonal", "random_feedback", "kappa"): _random,
    ("per_param", "jacobian", "diagonal", "modulatory", "none"): _made(ThreeFactor),
    ("per_param", "jacobian", "coupled", "symmetric", "none"): _made(OSTLRecurrent),
    ("per_param", "jacobian", "sparse_n", "symmetric", "none"): _made(SnAp, n="sparse_n"),
    ("per_param", "scalar_leak", "diagonal", "symmetric", "none"): _made(OTPE, leak="decay"),
    ("per_param", "none", "diagonal", "bootstrapped", "none"): _made(DNI),
    ("per_param", "jacobian", "diagonal", "bootstrapped", "none"): _made(DNI),
    ("per_param", "none", "diagonal", "symmetric", "none"): _made(DNI),
    ("io_factorized", "jacobian", "diagonal", "symmetric", "none"): _made(pp_prop, decay_or_rank="decay"),
    ("io_factorized", "scalar_leak", "diagonal", "symmetric", "none"): _made(OTTT, leak="decay"),
    ("random_projection", "jacobian", "diagonal", "symmetric", "none"): _made(UORO),
    ("random_projection", "jacobian", "coupled", "symmetric", "none"): _made(UORO),
}


def _parts_of_eprop(rule: Any) -> dict[str, Any]:
    signal = "random_feedback" if rule.feedback == "random" else "symmetric"
    filtered = {"trace_filter": "kappa", "kappa": rule.kappa_filter_decay} if rule.kappa_filter_decay else {}
    return {"learning_signal": signal, **filtered}


def _parts_of_leak(rule: Any, mode: str, **parts: str) -> dict[str, Any] | None:
    return {"temporal_recursion": "scalar_leak", "decay": rule.leak, **parts} if rule.mode == mode else None


# The other way round: the parts of each rule. Of OTTT and OTPE the parts name one mode alone.
_PARTS_OF: dict[type[Rule], Callable[[Any], dict[str, Any] | None]] = {
    D_RTRL: lambda rule: {},
    EProp: _parts_of_eprop,
    ThreeFactor: lambda rule: {"learning_signal": "modulatory"},
    OSTLRecurrent: lambda rule: {"recurrence_scope": "coupled"},
    SnAp: lambda rule: {"recurrence_scope": "sparse_n", "sparse_n": rule.n},
    OTPE: lambda rule: _parts_of_leak(rule, "full"),
    OTTT: lambda rule: _parts_of_leak(rule, "A", trace_factorization="io_factorized"),
    DNI: lambda rule: {"learning_signal": "bootstrapped"},
    pp_prop: lambda rule: {"trace_factorization": "io_factorized", "decay": rule.decay_or_rank},
    OSTLFeedforward: lambda rule: {"trace_factorization": "io_factorized", "decay": rule.decay_or_rank},
    UORO: lambda rule: {"trace_factorization": "random_projection", "recurrence_scope": "coupled"},
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
