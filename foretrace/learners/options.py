"""Options at the border: which ones a rule has, and which are taken only because scripts of braintrace pass them.

An option of another implementation that could not change a result (a size of its buffers, the way it adds up) is
checked and left out. One that would change the result is refused by name, with what to do instead.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import brainstate

from foretrace.algorithms import ETraceConfig
from foretrace.engine.rule import Rule
from foretrace.errors import NotSupportedError


def _is_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"`{name}` is True or False; got {value!r}.")


def _is_count(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"`{name}` is a number of elements from 1 on; got {value!r}.")


def _is_off(name: str, value: Any) -> None:
    _is_flag(name, value)
    if value:
        raise NotSupportedError(f"`{name}=True` changes the gradient, and no rule here has it: leave it out.")


def _is_mode(name: str, value: Any) -> None:
    if not isinstance(value, brainstate.mixin.Mode):
        raise TypeError(f"`{name}` is a `brainstate.mixin.Mode` or None; got {value!r}.")


def _is_anything(name: str, value: Any) -> None:
    """A key without a random feedback is not looked at."""


# Options of braintrace that change nothing here, with what they must be.
FOREIGN: dict[str, Callable[[str, Any], None]] = {
    "fast_solve": _is_flag,
    "chunked_trace": _is_flag,
    "snap_max_jacobian_elements": _is_count,
    "normalize_matrix_spectrum": _is_off,
    "mode": _is_mode,
    "random_feedback_key": _is_anything,
}


# What each class takes by position after the model; a subclass takes what its base takes.
_COMMON = ("name", "vjp_method", "fast_solve")
_TRACE = ("trace_dtype", "chunked_trace", "control_flow")
_CONFIG = ("config", "random_feedback_key")
_PROJECTION = ("projection_key", "projection_eps", "random_feedback_key")
_LIMIT = ("snap_max_jacobian_elements",)
POSITIONAL: dict[str, tuple[str, ...]] = {
    "ParamDimVjpAlgorithm": (*_COMMON, *_TRACE, *_CONFIG, *_LIMIT),
    "IODimVjpAlgorithm": ("decay_or_rank", *_COMMON, "control_flow", *_CONFIG),
    "HybridDimVjpAlgorithm": ("decay_or_rank", *_COMMON),
    "RandomProjectionVjpAlgorithm": (*_COMMON, "control_flow", "config", *_PROJECTION, *_LIMIT),
    "UORO": (*_COMMON, "control_flow", *_PROJECTION, *_LIMIT),
    "EProp": ("feedback", "kappa_filter_decay", "random_feedback_key", *_COMMON),
    "OTTT": ("mode",),
    "OTPE": ("mode",),
    "OSTTP": ("B_list", "target_timing", *_COMMON),
    "SnAp": ("n", *_COMMON, *_LIMIT),
    "ThreeFactor": ("name", "vjp_method", "modulator", "fast_solve", *_TRACE, *_LIMIT),
    "DNI": ("synthesizer", *_COMMON, *_TRACE, *_LIMIT),
}


def own_options(owner: str, record: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The options that a record of a rule has, without those that are None and those of another implementation.

    Args:
        owner: Whose options they are, for messages.
        record: The dataclass of the rule, or one of its instances.
        options: The options that were given.

    Raises:
        TypeError: The rule has no such option, or needs one that was not given.
    """
    known = [field.name for field in dataclasses.fields(record)]
    own = {name: value for name, value in options.items() if name in known}
    for name, value in options.items():
        if name in own or value is None:
            continue
        if name not in FOREIGN:
            listed = ", ".join(f"`{n}`" for n in known) or "none"
            raise TypeError(f"{owner} has no option `{name}`. It has {listed}.")
        FOREIGN[name](name, value)
    if isinstance(record, type):
        _require(owner, record, own)
    return own


def _require(owner: str, record: Any, own: dict[str, Any]) -> None:
    """Refuses to make a rule without an option that has no default."""
    needed = [f.name for f in dataclasses.fields(record) if f.default is f.default_factory is dataclasses.MISSING]
    missing = [name for name in needed if name not in own]
    if missing:
        listed = ", ".join(f"`{name}`" for name in missing)
        raise TypeError(f"{owner} needs {listed}: give it by name, such as `{missing[0]}=0.99` for a decay.")


def rule_of_config(owner: str, config: ETraceConfig, options: dict[str, Any]) -> Rule:
    """The rule that a config makes, with further options.

    Raises:
        TypeError: Not a config, or not an option of its rule.
        ValueError: An option that says otherwise than the config.
    """
    if not isinstance(config, ETraceConfig):
        raise TypeError(f"`config` is an `ETraceConfig`; got {type(config).__name__}.")
    options = {name: value for name, value in options.items() if value is not None}
    decay = options.pop("decay_or_rank", config.decay)
    if decay is not config.decay and decay != config.decay:
        raise ValueError(f"`decay_or_rank={decay!r}` and `decay={config.decay!r}` of the config differ; give one.")
    rule = config.rule()
    return dataclasses.replace(rule, **own_options(owner, rule, options))  # type: ignore[type-var]


def check_scope(
    include_recurrent_mixing: bool, sparse_n: int | None, snap_max_jacobian_elements: int, full_jacobian: bool = False
) -> None:
    """Refuses what would ask the graph for another recurrence: here the rule says which one it follows.

    Raises:
        NotSupportedError: Mixing, neighbourhoods or whole Jacobians were asked for.
    """
    _is_count("snap_max_jacobian_elements", snap_max_jacobian_elements)
    asked = {
        "include_recurrent_mixing": (include_recurrent_mixing, "'ostl_recurrent'"),
        "sparse_n": (sparse_n, "'snap', with its option `n`"),
        "full_jacobian": (full_jacobian, "'rtrl'"),
    }
    for name, (value, rule) in asked.items():
        if value:
            raise NotSupportedError(
                f"`{name}={value!r}`: the graph is the same for every rule here, and the rule says which recurrence it "
                f"follows. Compile the model with {rule}, and leave `{name}` out."
            )


def by_position(learner: type, values: Sequence[Any], given: Sequence[str]) -> dict[str, Any]:
    """Options that were given by position, by name.

    Args:
        learner: The class of the learner.
        values: What was given by position after the model.
        given: Names of options that were given by name.

    Raises:
        TypeError: Too many values, or an option given twice.
    """
    owner = learner.__name__
    names = next((POSITIONAL[base.__name__] for base in learner.__mro__ if base.__name__ in POSITIONAL), ())
    if len(values) > len(names):
        allowed = ", ".join(f"`{name}`" for name in ("model", *names))
        raise TypeError(f"{owner} takes {allowed} by position, and everything else by name.")
    found = dict(zip(names, values, strict=False))
    twice = [name for name in found if name in given]
    if twice:
        raise TypeError(f"{owner} got `{twice[0]}` by position and by name.")
    if not isinstance(found.get("name", ""), str | None):
        listed = ", ".join(f"`{name}`" for name in names)
        raise TypeError(f"{owner} takes {listed} by position after the model; `name` is {found['name']!r}, no text.")
    return found
