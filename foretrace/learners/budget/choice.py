"""The choice: of all candidates that fit a memory, the one whose gradient is nearest to that of BPTT.

What is exact by structure comes first, the fastest of it; nothing is run for that. Where none of it fits, each row of
the table is fitted to the memory and its gradient is measured on a stretch of data. The same model, memory and data
give the same choice.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from foretrace import _html
from foretrace._look import figure, series
from foretrace._repr import bytes_text, one_line
from foretrace.compiler.reporting.tables import table
from foretrace.errors import NotSupportedError
from foretrace.learners.blocks import default_block
from foretrace.learners.budget.candidates import Candidate, Knob, exact_candidates, rows
from foretrace.learners.budget.measured import EXACT, Agreement, Measured
from foretrace.rules.bptt import BPTT
from foretrace.rules.rule import Rule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LADDER = (1 / 16, 1 / 4, 1.0, 4.0, 16.0)
HEADER = ["memory", "choice", "takes", "cosine", "error"]
NEAR = 1e-3  # of two cosines that differ by less, the faster candidate is taken


@dataclass(frozen=True)
class Option:
    """A candidate with what it takes and gives.

    Attributes:
        candidate: The rule with its windows and blocks.
        bytes: The memory that XLA plans for its gradient, beside inputs and targets.
        cosine: The cosine to the gradient of BPTT, on the stretch.
        error: The norm of the difference to that gradient over its norm.
    """

    candidate: Candidate
    bytes: int
    cosine: float
    error: float

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield self.candidate.name
        yield bytes_text(self.bytes)
        yield f"cosine {self.cosine:.4f}"


@dataclass(frozen=True)
class Choice:
    """What `"auto"` chose, and why; print it.

    Attributes:
        memory: The bytes that a gradient may take.
        length: Steps in a sequence.
        stretch: Steps that gradients were compared on.
        given: Whether that stretch is the user's data.
        chosen: The option that was taken.
        considered: The options that were measured for it and fit.
    """

    memory: int
    length: int
    stretch: int
    given: bool
    chosen: Option
    considered: tuple[Option, ...]
    _at: Callable[[int], Option | None] = field(repr=False, compare=False)

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield self.chosen.candidate.name
        yield f"{bytes_text(self.chosen.bytes)} of {bytes_text(self.memory)} for {self.length} steps"
        yield f"cosine {self.chosen.cosine:.4f}"

    def __str__(self) -> str:
        cells = [_cells(option, "") for option in self.considered]
        return "\n".join([repr(self), self._source(), *table(HEADER[1:], [row[1:] for row in cells], [60, 10, 8, 8])])

    def _repr_html_(self) -> str:
        cells = [[_html.named(row[1]), *row[2:]] for row in (_cells(option, "") for option in self.considered)]
        source = f"<p>{_html.prose(self._source())}</p>"
        return _html.cell(repr(self), source, _html.table(HEADER[1:], cells, frozenset({1, 2, 3})))

    def _source(self) -> str:
        if self.chosen.error == 0.0 and len(self.considered) == 1:
            return "Exact by structure: the gradient of BPTT."
        data = "the sample" if self.given else "random inputs and derivatives"
        return f"Cosine and error to BPTT over {self.stretch} steps of {data}."

    @property
    def rule(self) -> str:
        """The name of the rule: `foretrace.compile(model, choice.rule, x0, **choice.options)` is the same learner."""
        return self.chosen.candidate.rule.name

    @property
    def options(self) -> dict[str, Any]:
        """The options that go with `rule`."""
        return self.chosen.candidate.options

    def other_budgets(self, budgets: Sequence[int] | None = None) -> list[tuple[int, Option | None]]:
        """What other memories would buy. Candidates are compiled and run for it, which takes a while.

        Args:
            budgets: Bytes; None for a sixteenth to sixteen times of the memory.

        Returns:
            For each budget what would be chosen; None where nothing fits.
        """
        asked = [int(self.memory * factor) for factor in LADDER] if budgets is None else list(budgets)
        return [(budget, self._at(budget)) for budget in asked]

    def table(self, budgets: Sequence[int] | None = None) -> str:
        """`other_budgets` as a table."""
        rows = [_cells(option, bytes_text(budget)) for budget, option in self.other_budgets(budgets)]
        return "\n".join(table(HEADER, rows, [10, 60, 10, 8, 8]))

    def plot(self, path: str | os.PathLike[str] | None = None, budgets: Sequence[int] | None = None) -> "Figure":
        """Draws the budget against `1 - cosine` of what it buys.

        Args:
            path: A file to write, whose ending says the format; None to write none.
            budgets: As for `other_budgets`.

        Returns:
            The matplotlib figure.
        """
        found = [(budget, option) for budget, option in self.other_budgets(budgets) if option is not None]
        with figure("Drawing a choice", (6, 3.6), path) as drawn:
            axes = drawn.subplots()
            axes.plot([b / 1e6 for b, _ in found], [1 - option.cosine for _, option in found], **series(0).line)
            axes.set(xscale="log", xlabel="memory of a gradient, MB", ylabel="1 - cosine to BPTT")
            axes.axvline(self.memory / 1e6, color="black", linewidth=0.8, linestyle="--")
        return drawn


def _cells(option: Option | None, budget: str) -> list[str]:
    if option is None:
        return [budget, "nothing fits", "-", "-", "-"]
    return [
        budget,
        option.candidate.name,
        bytes_text(option.bytes),
        f"{option.cosine:.4f}",
        f"{option.error:.2g}",
    ]


def choose(measured: Measured, memory: int) -> Choice:
    """Chooses for a memory.

    Raises:
        NotSupportedError: Nothing fits; the message says what the least needs.
    """
    found = _fitting(measured, memory)
    if not found:
        least = measured.bytes(Candidate(BPTT(), window=1))
        raise NotSupportedError(
            f"No gradient of {measured.length} steps fits in {bytes_text(memory)}: parameters, gradients and one step "
            f"alone take {bytes_text(least)}. Raise `memory`, or make the batch or the model smaller."
        )

    def at(budget: int) -> Option | None:
        others = _fitting(measured, budget)
        return _best(others) if others else None

    return Choice(memory, measured.length, measured.stretch, measured.sample.given, _best(found), tuple(found), at)


def _best(options: Sequence[Option]) -> Option:
    highest = max(option.cosine for option in options)
    return next(option for option in options if option.cosine >= highest - NEAR)


def _fitting(measured: Measured, memory: int) -> list[Option]:
    """What fits: the first that is exact, alone; else every row of the table, fitted."""
    plan = measured.learner.plan
    for candidate in exact_candidates(plan, measured.length):
        if (sized := _sized(measured, candidate, memory)) is not None:
            return [_option(measured, sized, EXACT)]
    kept: dict[Candidate, None] = {}
    for row in rows(plan):
        fitted = next((one for rule in row.rules if (one := _fitted(measured, rule, row.knob, memory))), None)
        if fitted is not None:
            kept |= dict.fromkeys([fitted, *(replace(fitted, rule=rule) for rule in row.alike)])
    return [_option(measured, candidate, measured.agreement(candidate)) for candidate in kept]


def _option(measured: Measured, candidate: Candidate, agreement: Agreement) -> Option:
    return Option(candidate, measured.bytes(candidate), agreement.cosine, agreement.error)


def _fitted(measured: Measured, rule: Rule, knob: Knob, memory: int) -> Candidate | None:
    """A rule with its knob as far as the memory allows; None where even the smallest does not fit."""
    return (_windowed if knob == "window" else _sized)(measured, Candidate(rule), memory)


def _sized(measured: Measured, candidate: Candidate, memory: int) -> Candidate | None:
    """A candidate with blocks that fit."""
    if not measured.supports(candidate) or measured.least(candidate) > memory:
        return None
    if measured.bytes(candidate) <= memory:
        return candidate
    if candidate.rule.exact:
        return None
    block = min(measured.length, default_block(measured.learner.plan, candidate.rule, memory))
    while measured.bytes(smaller := replace(candidate, block=block)) > memory:
        if block == 1:
            return None
        block = max(1, block // 4)
    return smaller


def _windowed(measured: Measured, candidate: Candidate, memory: int) -> Candidate | None:
    """The candidate with the largest window that fits: memory grows linearly with it, so a line finds it."""
    if not measured.supports(candidate) or measured.least(candidate) > memory:
        return None
    of = lambda window: replace(candidate, window=window)
    low, at_low = 1, measured.bytes(of(1))
    if at_low > memory:
        return None
    high = max(1, measured.length // 2)
    at_high = measured.bytes(of(high))
    while at_high > memory and high > low + 1:
        guess = low + int((memory - at_low) * (high - low) / max(1, at_high - at_low))
        guess = min(max(guess, low + 1), high - 1)
        at_guess = measured.bytes(of(guess))
        if at_guess <= memory:
            low, at_low = guess, at_guess
            if high - low <= max(1, low // 8) or at_low > 0.85 * memory:
                break
        else:
            high, at_high = guess, at_guess
    return of(high if at_high <= memory else low)
