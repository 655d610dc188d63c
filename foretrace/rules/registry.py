"""From what a user names as a rule to its record: a name, a class, a record, or an `ETraceConfig`.

The table of names is open: `register_rule` adds a rule of one's own. A class or a record needs no name.
"""

import dataclasses
import difflib
import inspect
from typing import Any

from foretrace.rules.bptt import BPTT
from foretrace.rules.config import ETraceConfig
from foretrace.rules.d_rtrl import D_RTRL
from foretrace.rules.dni import DNI
from foretrace.rules.eprop import EProp
from foretrace.rules.hybrid import Hybrid
from foretrace.rules.low_rank import LowRank
from foretrace.rules.options import own_options, rule_of_config
from foretrace.rules.ostl import OSTLFeedforward, OSTLRecurrent
from foretrace.rules.osttp import OSTTP
from foretrace.rules.otpe import OTPE
from foretrace.rules.ottt import OTTT
from foretrace.rules.pp_prop import pp_prop
from foretrace.rules.rtrl import RTRL
from foretrace.rules.rule import Rule
from foretrace.rules.snap import SnAp
from foretrace.rules.three_factor import ThreeFactor
from foretrace.rules.uoro import UORO

RULES: dict[str, type[Rule]] = {
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
    "low_rank": LowRank,
    "hybrid": Hybrid,
    "bptt": BPTT,
}


def register_rule(rule: Any, *names: str) -> Any:
    """Lets a rule be named, in `foretrace.compile` and on the command line.

    Args:
        rule: A subclass of `Rule`, a frozen dataclass.
        *names: What it is called besides its own `name`.

    Returns:
        The rule, so that this may stand as a decorator.

    Raises:
        TypeError: Not a rule.
        ValueError: The name belongs to another rule.

    Examples:
        >>> from dataclasses import dataclass
        >>> from foretrace.rules import D_RTRL, make_rule, register_rule
        >>> @register_rule
        ... @dataclass(frozen=True)
        ... class Mine(D_RTRL):
        ...     name = "mine"
        >>> make_rule("mine")
        Mine(trace_dtype=None)
        >>> _ = RULES.pop("mine")
    """
    is_rule = inspect.isclass(rule) and issubclass(rule, Rule) and dataclasses.is_dataclass(rule)
    if not is_rule:
        raise TypeError(f"A rule is a class made of `foretrace.Rule` by `dataclass(frozen=True)`; got {rule!r}.")
    for name in (rule.name, *names):
        if _by_name().get(_plain(name), rule) is not rule:
            raise ValueError(f"`{name}` is the name of another rule: choose another one.")
        RULES.setdefault(name.lower(), rule)
    return rule


def find_rule(choice: str) -> type[Rule]:
    """The rule of a name, in any case, with underscores, hyphens or neither.

    Raises:
        ValueError: An unknown name; the message lists the known ones.
    """
    found = _by_name().get(_plain(choice))
    if found is None:
        near = difflib.get_close_matches(_plain(choice), _by_name(), n=1)
        meant = f" Did you mean `{next(n for n in RULES if _plain(n) == near[0])}`?" if near else ""
        raise ValueError(f"There is no rule `{choice}`.{meant} The names are {', '.join(RULES)}.")
    return found


def make_rule(choice: Any, **options: Any) -> Rule:
    """The record of a rule.

    Args:
        choice: A name, a class, an `ETraceConfig`, or a record, which has its options already.
        **options: Options of the rule; those that are None are left out.

    Raises:
        ValueError: An unknown name; the message lists the known ones.
        TypeError: Not a rule, or not an option of it.

    Examples:
        >>> make_rule("pp-prop", decay_or_rank=0.9)
        pp_prop(decay_or_rank=0.9)
    """
    if isinstance(choice, Rule):
        given = {name: value for name, value in options.items() if value is not None and name != "fast_solve"}
        if given:
            raise TypeError(f"The rule {choice!r} has its options already; got {', '.join(given)} beside it.")
        return choice
    if isinstance(choice, ETraceConfig):
        return rule_of_config("The rule of the config", choice, options)
    rule = find_rule(choice) if isinstance(choice, str) else choice
    if not (inspect.isclass(rule) and issubclass(rule, Rule)):
        raise TypeError(
            "A rule is a name such as 'D_RTRL', a class such as `foretrace.D_RTRL`, its record, or an `ETraceConfig`; "
            f"got {choice!r}."
        )
    return rule(**own_options(rule.__name__, rule, options))


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "").replace(" ", "")


def _by_name() -> dict[str, type[Rule]]:
    return {_plain(name): rule for name, rule in RULES.items()}
