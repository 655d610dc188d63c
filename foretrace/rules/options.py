"""The options of a rule: which ones it has, and which are taken only because scripts of braintrace pass them.

An option of another implementation that could not change a result (a size of its buffers, the way it adds up) is
checked and left out. One that would change the result is refused by name, with what to do instead.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from foretrace._optional import is_instance
from foretrace.errors import NotSupportedError
from foretrace.rules.config import ETraceConfig
from foretrace.rules.rule import Rule


def is_flag(name: str, value: Any) -> None:
    """Refuses what is neither True nor False."""
    if not isinstance(value, bool):
        raise TypeError(f"`{name}` is True or False; got {value!r}.")


def is_count(name: str, value: Any) -> None:
    """Refuses what is no number of elements."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"`{name}` is a number of elements from 1 on; got {value!r}.")


def _is_off(name: str, value: Any) -> None:
    is_flag(name, value)
    if value:
        raise NotSupportedError(f"`{name}=True` changes the gradient, and no rule here has it: leave it out.")


def _is_mode(name: str, value: Any) -> None:
    if not is_instance(value, "brainstate.mixin", "Mode"):
        raise TypeError(f"`{name}` is a `brainstate.mixin.Mode` or None; got {value!r}.")


def _is_anything(name: str, value: Any) -> None:
    """A key without a random feedback is not looked at."""


# Options of braintrace that change nothing here, with what they must be.
FOREIGN: dict[str, Callable[[str, Any], None]] = {
    "fast_solve": is_flag,
    "chunked_trace": is_flag,
    "snap_max_jacobian_elements": is_count,
    "normalize_matrix_spectrum": _is_off,
    "mode": _is_mode,
    "random_feedback_key": _is_anything,
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
