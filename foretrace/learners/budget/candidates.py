"""What may be kept of the past, from nothing to all of it: the table that `"auto"` chooses from.

A row is a rule, and what is fitted to the memory: the steps in a window of exact credit, in a block, or in a segment
that is run again. Rows stand in the order of their time, so that of two with the same gradient the first is taken. A
new rule is one more row.
"""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp

from foretrace._repr import one_line
from foretrace.compiler import HistoryKind
from foretrace.engine.plan import Plan
from foretrace.rules.bptt import BPTT
from foretrace.rules.d_rtrl import D_RTRL
from foretrace.rules.hybrid import Hybrid
from foretrace.rules.ostl import OSTLRecurrent
from foretrace.rules.pp_prop import pp_prop
from foretrace.rules.rtrl import RTRL
from foretrace.rules.rule import Rule
from foretrace.rules.snap import SnAp

Knob = Literal["block", "window"]


@dataclass(frozen=True)
class Candidate:
    """A way to a gradient.

    Attributes:
        rule: The rule.
        window: Steps with exact credit; None for none, or for all of them where the rule is exact.
        block: Steps in a block; None to choose by size.
    """

    rule: Rule
    window: int | None = None
    block: int | None = None

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield self.name

    @property
    def name(self) -> str:
        """The rule with its options, and the windows."""
        given = [f"{name}={value}" for name, value in _options(self.rule).items()]
        return ", ".join([self.rule.name, *given, *([f"window={self.window}"] if self.window else [])])

    @property
    def options(self) -> dict[str, Any]:
        """What `foretrace.compile` takes beside the name of the rule."""
        knobs = {"window": self.window, "block": self.block}
        return _options(self.rule) | {name: value for name, value in knobs.items() if value is not None}

    def exact(self, plan: Plan, length: int) -> bool:
        """Whether the gradient of a sequence of this length is that of BPTT, by structure."""
        if self.rule.exact:
            return self.window is None or self.window >= length
        return isinstance(self.rule, RTRL) or (type(self.rule) is D_RTRL and _is_direct(plan))


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        rules: The first of these that fits is taken.
        knob: What is turned as far as the memory allows.
        alike: Rules that take the same memory with the same knob.
    """

    rules: tuple[Rule, ...]
    knob: Knob = "block"
    alike: tuple[Rule, ...] = ()


def _options(rule: Rule) -> dict[str, Any]:
    """The options of a rule that are not as by default, as plain values."""
    fields = dataclasses.fields(rule)  # type: ignore[arg-type]
    return {f.name: value for f in fields if (value := getattr(rule, f.name)) != f.default}


def _is_direct(plan: Plan) -> bool:
    """Whether D-RTRL loses nothing on a model, in the dtype of its states."""
    whole = (HistoryKind.ALL, HistoryKind.NONE_NEEDED)
    return all(parameter.history in whole for parameter in plan.graph.parameters)


def exact_candidates(plan: Plan, length: int) -> list[Candidate]:
    """The candidates whose gradient is that of BPTT, the fastest first."""
    segment = max(1, math.isqrt(length))
    found = [Candidate(BPTT()), Candidate(D_RTRL()), Candidate(BPTT(segment=segment)), Candidate(RTRL())]
    return [one for one in found if one.exact(plan, length)]


def rows(plan: Plan) -> list[Row]:
    """The table of what is an approximation, the fastest first."""
    traces: tuple[Rule, ...] = (D_RTRL(),)
    if not any(jnp.issubdtype(link.dtype, jnp.complexfloating) for link in plan.links):
        traces += (D_RTRL(trace_dtype="bfloat16"),)
    return [
        Row((BPTT(),), "window"),
        Row((pp_prop(0.9),), alike=(pp_prop(0.99),)),
        Row((Hybrid(0.9),), alike=(Hybrid(0.99),)),
        Row((Hybrid(0.9),), "window", alike=(Hybrid(0.99),)),
        Row(traces),
        Row(traces, "window"),
        Row((OSTLRecurrent(),)),
        Row((SnAp(n=2), SnAp(n=1))),
    ]
