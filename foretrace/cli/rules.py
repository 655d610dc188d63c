"""Rules by name on the command line: `pp_prop`, `EProp:feedback=symmetric`, and `BPTT` among them.

A rule that needs an option gets a value that suits most networks, so that every rule runs by its name alone.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from foretrace.cli.arguments import UsageError, name_value

BPTT = "BPTT"
DECAY = 0.9  # of pp_prop and its like, where a task names none

# What a rule is given where nothing was said; LEAK is the leak of the neurons' potential.
LEAK = object()
DEFAULTS: dict[str, dict[str, Any]] = {
    "pp_prop": {"decay_or_rank": DECAY},
    "hybrid": {"decay_or_rank": DECAY},
    "OTTT": {"leak": LEAK},
    "OTPE": {"leak": LEAK},
    "EProp": {"feedback": "random"},  # with symmetric feedback and no filter it would be D_RTRL
}
OUTSIDE = {"OSTTP": "targets to project", "ThreeFactor": "a modulator"}


@dataclass(frozen=True)
class RuleChoice:
    """A rule with its options.

    Attributes:
        name: Its name.
        options: Its options, defaults included.
        given: The options that were given.
        own: The class of a rule of the user's own; None for those that have a name here.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)
    own: Any = None

    @property
    def rule(self) -> Any:
        """What `foretrace.compile` takes."""
        return self.name if self.own is None else self.own

    @property
    def label(self) -> str:
        """The name with what was given, to tell choices apart; fit for the name of a file."""
        return "-".join([self.name, *(f"{name}={value}" for name, value in self.given.items())]).replace("/", "_")


def rule_choice(
    text: str, further: Mapping[str, Any] | None = None, known: Mapping[str, Any] | None = None, leak: float = DECAY
) -> RuleChoice:
    """Reads the name of a rule, with options or without.

    Args:
        text: `name` or `name:option=value:option=value`, in any case; for a rule of one's own `file.py:Class` in the
            place of the name, or `package.module:Class`.
        further: More options.
        known: Options that a task recommends, for rules that have no value of their own for them.
        leak: What the potential of a neuron keeps in a step.

    Raises:
        UsageError: There is no such rule, or it cannot be run from the command line.

    Examples:
        >>> rule_choice("d_rtrl").name, dict(rule_choice("pp_prop:decay_or_rank=0.99").options)
        ('D_RTRL', {'decay_or_rank': 0.99})
    """
    from foretrace.rules import find_rule

    name, *parts = text.strip().split(":")
    try:
        rule = find_rule(name).name
    except ValueError as error:
        if not parts or "=" in parts[0]:
            raise UsageError(f"{error} A rule of your own is named by its file and class, my.py:MyRule.") from error
        own = _own_rule(f"{name}:{parts[0]}")
        given = {**_options(parts[1:], text), **(further or {})}
        return RuleChoice(own.name, given, given, own)
    given = {**_options(parts, text), **(further or {})}
    if rule in OUTSIDE:
        raise UsageError(f"{rule} takes {OUTSIDE[rule]} at every step: use it from Python, see docs/rules.md.")
    defaults = {option: leak if value is LEAK else value for option, value in DEFAULTS.get(rule, {}).items()}
    recommended = {option: value for option, value in (known or {}).items() if option in defaults}
    return RuleChoice(rule, {**defaults, **recommended, **given}, given)


def _own_rule(target: str) -> Any:
    """The class of a user's own rule, by `file.py:Class` or `package.module:Class`."""
    from foretrace.cli.loading import load
    from foretrace.rules import Rule

    found = load(target)[0]
    if not (isinstance(found, type) and issubclass(found, Rule)):
        raise UsageError(f"`{target}` is no rule. A rule is a class made of `foretrace.Rule`, or of one of its rules.")
    if not isinstance(getattr(found, "name", None), str):
        raise UsageError(f'The rule `{target}` has no name: give its class one, `name = "my rule"`.')
    return found


def leak_of(settings: Mapping[str, Any], dt: float) -> float:
    """What the potential of a network's neurons keeps in a step, by its time constant.

    One that makes no sense is refused where the network is made.
    """
    tau = settings.get("tau_m", 20.0)
    return math.exp(-dt / tau) if isinstance(tau, int | float) and tau > 0 else DECAY


def _options(parts: list[str], text: str) -> dict[str, Any]:
    import argparse

    try:
        return dict(name_value(part) for part in parts)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"The rule {text!r}: {error}, as in pp_prop:decay_or_rank=0.99.") from error


def rule_choices(text: str, **settings: Any) -> list[RuleChoice]:
    """Reads several, with commas between them.

    Raises:
        UsageError: One of them is none, or is there twice.
    """
    found = [rule_choice(part, **settings) for part in text.split(",") if part.strip()]
    labels = [rule.label for rule in found]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice or not found:
        raise UsageError(f"{', '.join(twice)} is there twice." if twice else "Name at least one rule.")
    return found
