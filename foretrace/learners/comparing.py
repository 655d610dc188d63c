"""How far an online gradient is from that of BPTT, parameter by parameter, on the user's own model and data.

Both gradients are of the same losses over the same sequence, from the same states with empty traces. A cosine of 1 and
a ratio of norms of 1 mean that nothing is lost. What is lost has a reason, and the table names its kind: a parameter
whose history keeps *all* has none to lose with D-RTRL, one of *direct paths* misses the detours through mixing.
"""

import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from foretrace import _html
from foretrace._look import figure
from foretrace._repr import counted, one_line
from foretrace.compiler import HistoryKind
from foretrace.compiler.reporting.drawing import BORDER, EDGE, FACE
from foretrace.compiler.reporting.html import kind_box
from foretrace.compiler.reporting.tables import table
from foretrace.compiler.reporting.words import HISTORY
from foretrace.learners.learner import Learner, at_start
from foretrace.rules.bptt import BPTT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OVERALL = "overall"
HEADER = ["parameter", "cosine", "norm ratio", "online norm", "BPTT norm", "history"]
HATCH = {HistoryKind.ALL: "", HistoryKind.DIRECT: "//", HistoryKind.IN_STEP: "xx", HistoryKind.NONE_NEEDED: ".."}


@dataclass(frozen=True)
class ComparedGradient:
    """One parameter's online gradient beside that of BPTT.

    Attributes:
        name: The parameter; `overall` for all of them together.
        cosine: The cosine of the angle between the two; nan where one of them is zero.
        norm_ratio: The online norm over that of BPTT; nan where the latter is zero.
        online_norm: The norm of the online gradient.
        bptt_norm: The norm of BPTT's.
        history: What the parameter's history keeps; None for all parameters together.
    """

    name: str
    cosine: float
    norm_ratio: float
    online_norm: float
    bptt_norm: float
    history: HistoryKind | None = None

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield self.name
        yield f"cosine {_number(self.cosine, '.4f')}"
        yield f"norm ratio {_number(self.norm_ratio, '.4f')}"


@dataclass(frozen=True)
class GradientComparison:
    """Online gradients beside those of BPTT; print it for a table.

    Attributes:
        rule: The name of the rule.
        rows: One for each parameter.
        overall: All parameters together.
    """

    rule: str
    rows: tuple[ComparedGradient, ...]
    overall: ComparedGradient

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield f"{self.rule} against BPTT"
        yield f"cosine {_number(self.overall.cosine, '.2f')}"
        yield counted(len(self.rows), "parameter")

    def __str__(self) -> str:
        rows = [[*cells, "" if kind is None else HISTORY[kind]] for cells, kind in self._cells()]
        return "\n".join([f"{self.rule} against BPTT", *table(HEADER, rows, [40, 12, 12, 12, 12, 20])])

    def _repr_html_(self) -> str:
        rows = [
            [_html.named(first), *numbers, "" if kind is None else kind_box(kind)]
            for (first, *numbers), kind in self._cells()
        ]
        return _html.cell(repr(self), _html.table(HEADER, rows, frozenset({1, 2, 3, 4})))

    def _cells(self) -> list[tuple[list[str], HistoryKind | None]]:
        """The cells of each row of a table, and what the parameter's history keeps."""
        forms = {"cosine": ".4f", "norm_ratio": ".4f", "online_norm": ".3g", "bptt_norm": ".3g"}
        return [
            ([row.name, *(_number(getattr(row, name), form) for name, form in forms.items())], row.history)
            for row in (*self.rows, self.overall)
        ]

    def dict(self) -> dict[str, Any]:
        """Plain Python values, as for JSON: the rule, the rows, and all parameters together."""
        return dataclasses.asdict(self) | {"rows": [dataclasses.asdict(row) for row in self.rows]}

    def plot(self, path: str | os.PathLike[str] | None = None) -> "Figure":
        """Draws the cosine and the ratio of norms of each parameter as bars; no screen is needed.

        Args:
            path: A file to write, whose ending says the format; None to write none.

        Returns:
            The matplotlib figure.

        Raises:
            ImportError: matplotlib is not installed.
        """
        rows = (*self.rows, self.overall)
        with figure("Drawing a comparison", (8, 1.4 + 0.32 * len(rows)), path) as drawn:
            left, right = drawn.subplots(1, 2, sharey=True)
            _bars(left, [row.cosine for row in rows], rows, "cosine to BPTT")
            _bars(right, [row.norm_ratio for row in rows], rows, "norm over that of BPTT")
            left.set_yticks(range(len(rows)), [row.name for row in rows], parse_math=False)
            left.invert_yaxis()
            drawn.suptitle(f"{self.rule} against BPTT")
            _legend(drawn, rows)
        return drawn


def compare_gradients(
    learner: Any,
    xs: Any,
    ys: Any = None,
    *,
    loss: Callable[..., Any],
    params: Any = None,
    state: Any = None,
    mask: Any = None,
    external: Any = None,
) -> GradientComparison:
    """Holds the online gradient of a sequence against that of BPTT, for each parameter.

    Both start from the same state with empty traces. Nothing changes: neither a model's states, nor the traces.

    Args:
        learner: A learner from `foretrace.compile`.
        xs: Inputs, time first; for a step with several inputs, a tuple of them.
        ys: Targets, time first; None where the loss needs none.
        loss: `loss(out, y)`, or `loss(out)` without targets: a scalar for each step.
        params: The parameters; None for those that the learner has, or was compiled with.
        state: The state to start from, or a carry whose state is meant; None for the one that the learner has, or was
            compiled with.
        mask: Weights `(T,)` of the losses.
        external: What the rule takes at each step beside the inputs.

    Returns:
        The comparison; print it, or `plot` it.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> import foretrace as ft
        >>> def step(params, h, x):
        ...     h = jnp.tanh(x @ params["w"] + 0.5 * h)
        ...     return h, h
        >>> params, xs = {"w": jnp.ones((2, 3))}, jnp.ones((5, 2))
        >>> learner = ft.compile(step, "D_RTRL", xs[0], params=params, state=jnp.zeros(3))
        >>> found = ft.compare_gradients(learner, xs, loss=lambda out: jnp.sum(out**2))
        >>> f"{found.overall.cosine:.3f}"
        '1.000'
    """
    pure, params, start = at_start(learner, params, state, "`compare_gradients`")

    def gradient(one: Learner, external: Any) -> list[Any]:
        run = lambda p: one.grad(p, one.init(start), xs, ys, loss=loss, mask=mask, external=external)[0]
        return pure.model.flatten_params(jax.jit(run)(params))

    exact = dataclasses.replace(pure, rule=BPTT(), window=None)
    online, bptt = gradient(pure, external), gradient(exact, None)
    rows = [_row(p.name, _flat([online[p.index]]), _flat([bptt[p.index]]), p.history) for p in learner.graph.parameters]
    return GradientComparison(learner.rule.name, tuple(rows), _row(OVERALL, _flat(online), _flat(bptt), None))


def _row(name: str, online: np.ndarray, bptt: np.ndarray, history: HistoryKind | None) -> ComparedGradient:
    mine, other = float(np.linalg.norm(online)), float(np.linalg.norm(bptt))
    cosine = float((online / mine) @ (bptt / other)) if mine and other else math.nan
    return ComparedGradient(name, cosine, mine / other if other else math.nan, mine, other, history)


def _flat(arrays: Sequence[Any]) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(array, np.float64)) for array in arrays])


def _number(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form)


def _bars(axes: "Axes", values: Sequence[float], rows: Sequence[ComparedGradient], title: str) -> None:
    for place, (value, row) in enumerate(zip(values, rows, strict=True)):
        if math.isnan(value):
            axes.text(0, place, " -", va="center")
        else:
            axes.barh(place, value, **_look(row.history))
    axes.axvline(1, color="black", linewidth=0.8, linestyle="--")
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_title(title, fontsize="medium")


def _look(history: HistoryKind | None) -> dict[str, Any]:
    """Face, border and hatching, so that kinds of history differ in grey too."""
    if history is None:
        return dict(facecolor="#555555", edgecolor="#222222")
    return dict(
        facecolor=FACE[history], edgecolor=EDGE[history], linestyle=BORDER[history], hatch=HATCH[history], linewidth=1.0
    )


def _legend(drawn: "Figure", rows: Sequence[ComparedGradient]) -> None:
    from matplotlib.patches import Patch

    kinds = [kind for kind in HistoryKind if any(row.history is kind for row in rows)]
    marks = [Patch(label=f"history: {HISTORY[kind]}", **_look(kind)) for kind in kinds]
    drawn.legend(handles=marks, loc="outside lower center", ncols=2)
