"""Random recurrent step functions, for tests that hold for every model.

`generate(seed)` draws one to three states, one to five parameters and four to fourteen operations of
`random_operations`, the same ones for the same seed in every process, and returns a plain
`step(params, state, x) -> (state, out)` with values for its arguments. Values stay of order one: results that could
grow are squashed.

`generate_wide(seed)` draws from a wider net: new states that are products with nothing behind them, projections
of one state to another, skips between layers, groups coupled through mixing, outputs of old states, lookups, booleans
and integers made of parameters and of data, backward passes of the user's own, and elements that reach many positions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from random_operations import (
    DIRECT_FAMILIES,
    EXACT_FAMILIES,
    FAMILIES,
    LARGEST,
    WIDE_FAMILIES,
    Draft,
    Operation,
    Shape,
    fit,
    squash,
    wide,
)

Step = Callable[[Any, Any, Any], tuple[Any, Any]]


@dataclass(frozen=True)
class Program:
    """A random recurrent step.

    Attributes:
        seed: What it was drawn from.
        step: `step(params, state, x) -> (state, out)`.
        params: Values of the parameters, by name.
        state: Values of the recurrent states, by name.
        x: A value of the input.
        exact: At a generic point, the Jacobian is nonzero wherever the equations have a path.
        operations: The names of the operations that reach a result, in order.
    """

    seed: int
    step: Step
    params: dict[str, np.ndarray]
    state: dict[str, np.ndarray]
    x: np.ndarray
    exact: bool
    operations: tuple[str, ...]

    @property
    def is_linear_backward(self) -> bool:
        """Whether every backward pass of the user's own is linear in its cotangent."""
        return not wide.NONLINEAR_BACKWARD & set(self.operations)

    @property
    def arguments(self) -> list[np.ndarray]:
        """All arguments in order: parameters, states, input."""
        return [*self.params.values(), *self.state.values(), self.x]

    def flat_step(self, *arguments: Any) -> list[Any]:
        """The step on `arguments` alone; gives the new states, then the outputs."""
        first = len(self.params)
        params = dict(zip(self.params, arguments[:first], strict=True))
        state = dict(zip(self.state, arguments[first:-1], strict=True))
        new_state, outputs = self.step(params, state, arguments[-1])
        return [*new_state.values(), *outputs]


def generate(seed: int) -> Program:
    """Draws the program of a seed.

    Args:
        seed: Any non-negative integer; it fixes the program and the values of its arguments.

    Returns:
        The program.

    Example:
        >>> program = generate(0)
        >>> new_state, out = program.step(program.params, program.state, program.x)
        >>> sorted(new_state) == sorted(program.state)
        True
    """
    return _generate(seed, np.random.default_rng(seed), _draw_operations, _draw_results)


def generate_wide(seed: int) -> Program:
    """Draws the program of a seed from the wider net."""
    return _generate(seed, np.random.default_rng([seed, 1]), _draw_wide_operations, _draw_wide_results)


def _generate(
    seed: int,
    rng: np.random.Generator,
    draw_operations: Callable[[Draft], list[Operation]],
    draw_results: Callable[[Draft, list[Operation], Sequence[int]], list[int]],
) -> Program:
    params, state, x = _draw_arguments(rng)
    inputs = [*params.values(), *state.values(), x]
    drawn: list[tuple[list[Operation], list[int]]] = []

    def draw(*values: Any) -> None:
        """Runs once on abstract values: each operation is drawn from the shapes of those before it."""
        draft = Draft(rng, list(values), list(range(len(params))), [1] * len(values))
        states = range(len(params), len(values) - 1)
        operations = draw_operations(draft)
        drawn.append((operations, draw_results(draft, operations, states)))

    jax.eval_shape(draw, *inputs)
    operations, results = drawn[0]
    live = _live(operations, results, first=len(inputs))
    step = _replay(operations, results, live, tuple(params), tuple(state))
    used = [operation for index, operation in enumerate(operations) if index + len(inputs) in live]
    exact = all(operation.exact for operation in used)
    return Program(seed, step, params, state, x, exact, tuple(operation.name for operation in used))


def _draw_arguments(rng: np.random.Generator) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], np.ndarray]:
    """Shapes that fit one another often: states and input share a batch axis, weights their widths."""
    batch = (int(rng.integers(2, 4)),) if rng.random() < 0.4 else ()
    widths = [int(n) for n in rng.integers(2, 5 if batch else 7, 3)]
    state = {}
    for index in range(int(rng.integers(1, 4))):
        shape = (*batch, int(rng.choice(widths[:2]))) if rng.random() < 0.85 else (int(rng.integers(2, 5)),)
        state[f"h{index}"] = _values(rng, shape)
    params = {}
    for index in range(int(rng.integers(1, 6))):
        width = int(rng.choice(widths))
        shapes: list[Shape] = [(width, widths[0]), (width, widths[1]), (widths[2], width), (width,), (), (2, 2, 3)]
        params[f"w{index}"] = _values(rng, shapes[int(rng.choice(6, p=[0.3, 0.2, 0.2, 0.2, 0.05, 0.05]))])
    return params, state, _values(rng, (*batch, widths[2]))


def _values(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    return np.asarray(0.8 * rng.standard_normal(shape))


def _draw_operations(draft: Draft) -> list[Operation]:
    """Between 4 and 14 operations of one kind of program, each added to the draft's values."""
    kind = draft.choose(["direct", "exact", "any", "any"])
    allowed = {"direct": DIRECT_FAMILIES, "exact": EXACT_FAMILIES, "any": tuple(sorted(FAMILIES))}[kind]
    operations: list[Operation] = []
    count = draft.integer(4, 14)
    while len(operations) < count:
        makers = FAMILIES[draft.choose(allowed)]
        operation = makers[draft.choose(sorted(makers))](draft)
        if operation.exact or kind == "any":
            _append(draft, operations, operation)
    return operations


def _draw_wide_operations(draft: Draft) -> list[Operation]:
    """Between 2 and 8 operations, half of them of the wider families."""
    operations: list[Operation] = []
    count = draft.integer(2, 8)
    while len(operations) < count:
        families = WIDE_FAMILIES if draft.rng.random() < 0.5 else FAMILIES
        makers = families[draft.choose(sorted(families))]
        _append(draft, operations, makers[draft.choose(sorted(makers))](draft))
    return operations


def _append(draft: Draft, operations: list[Operation], operation: Operation) -> None:
    """Adds an operation unless its result is empty or too large."""
    degrees = [draft.degrees[i] for i in operation.operands]
    degree = {"bounded": 1, "linear": max(degrees), "product": sum(degrees)}[operation.growth]
    if degree > 3:
        operation = _squashed(operation)
        degree = 1
    value = operation.function(*(draft.values[i] for i in operation.operands))
    if not 0 < value.size <= LARGEST or value.ndim > 4:
        return
    operations.append(operation)
    draft.read.update(operation.operands)
    draft.values.append(value)
    draft.degrees.append(degree)


def _squashed(operation: Operation) -> Operation:
    function = operation.function
    return Operation(
        operation.name, lambda *operands: squash(function(*operands)), operation.operands, operation.exact, "bounded"
    )


def _draw_results(draft: Draft, operations: list[Operation], states: Sequence[int]) -> list[int]:
    """The next value of each state, then one to three outputs, of values that nothing has read where there are any."""
    results = []
    for state in states:
        sources = tuple(_unread(draft) for _ in range(draft.integer(1, 3)))
        _append(draft, operations, _next_state(draft, state, sources))
        results.append(len(draft.values) - 1)
    if draft.rng.random() < 0.04:
        results[0] = states[0]  # a state that the step does not touch
    return results + [_unread(draft) for _ in range(draft.integer(1, 3))]


def _draw_wide_results(draft: Draft, operations: list[Operation], states: Sequence[int]) -> list[int]:
    """As `_draw_results`, with next states of more kinds, and outputs of old and new states."""
    new: dict[int, int] = {}
    for state in states:
        sources = tuple(_unread(draft) for _ in range(draft.integer(1, 2)))
        others = [new.get(other, other) for other in states if other != state]
        _append(draft, operations, wide.next_state(draft, state, sources, others))
        new[state] = len(draft.values) - 1
    outputs = []
    for _ in range(draft.integer(1, 3)):
        state = int(draft.rng.choice(states))
        value = _unread(draft)
        found = wide.output(draft, value, state, new[state])
        if found is not None:
            _append(draft, operations, found)
            value = len(draft.values) - 1
        outputs.append(value)
    return [*new.values(), *outputs]


def _unread(draft: Draft) -> int:
    """Mostly the last value that nothing has read, which counts as read from now on."""
    unread = [value for value in range(len(draft.values)) if value not in draft.read]
    chosen = unread[-1] if unread and draft.rng.random() < 0.9 else draft.pick()
    draft.read.add(chosen)
    return chosen


def _next_state(draft: Draft, old: int, sources: tuple[int, ...]) -> Operation:
    shape, coefficients = draft.shapes[old], [draft.coefficient() for _ in sources]
    leak = float(draft.rng.uniform(0.3, 0.9))

    def drive(values: tuple[Any, ...]) -> Any:
        return sum(c * fit(v, shape) for c, v in zip(coefficients, values, strict=True))

    kind = draft.choose(["leaky", "leaky", "leaky", "replaced", "gated"])
    if kind == "leaky":
        return Operation(kind, lambda h, *values: leak * h + drive(values), (old, *sources))
    if kind == "replaced":
        return Operation(kind, lambda *values: jnp.tanh(drive(values)), sources)
    return Operation(kind, lambda h, *values: h * jax.nn.sigmoid(drive(values)) + leak, (old, *sources))


def _live(operations: list[Operation], results: list[int], first: int) -> frozenset[int]:
    """The values that the results are made of."""
    live = set(results)
    for index in reversed(range(len(operations))):
        if index + first in live:
            live.update(operations[index].operands)
    return frozenset(live)


def _replay(
    operations: list[Operation],
    results: list[int],
    live: frozenset[int],
    param_names: tuple[str, ...],
    state_names: tuple[str, ...],
) -> Step:
    """The step that runs the live operations in order."""

    def step(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
        values = [*(params[name] for name in param_names), *(state[name] for name in state_names), x]
        for operation in operations:
            wanted = len(values) in live
            values.append(operation.function(*(values[i] for i in operation.operands)) if wanted else None)
        states = {name: values[result] for name, result in zip(state_names, results, strict=False)}
        return states, tuple(values[result] for result in results[len(states) :])

    return step
