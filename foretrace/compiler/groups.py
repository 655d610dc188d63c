"""Hidden groups: states of one shape whose next values depend on one another position by position.

The direct patterns of all next states by all previous states, and by one another within the step, connect states;
connected states of one shape form a group. A group knows its transition, the jaxpr of its next states by its previous
ones with every mixing output held constant, and how its states lie over its positions; the derivative `D` of the
transition is the engine's (`engine/transition.py`).
"""

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from foretrace._jax import Jaxpr, Var, eval_jaxpr, is_complex
from foretrace._optional import view
from foretrace._repr import counted, listed, one_line, shape_text
from foretrace.compiler import sparse
from foretrace.compiler.parts import LARGEST_PACK, Layout, take_apart
from foretrace.compiler.pattern import Pattern
from foretrace.compiler.patterns import Patterns
from foretrace.compiler.positions import (
    Component,
    Part,
    Slot,
    Transition,
    TransitionKind,
    find_transition,
    is_packed,
    joined,
    placed,
    slot_patterns,
)
from foretrace.compiler.slicing import DirectSlicer
from foretrace.program.diagnostics import CompilationRecord, DiagnosticKind, DiagnosticLevel, Path
from foretrace.program.records import Leaf, StepProgram, path_name, quoted


@dataclass(frozen=True, eq=False)
class HiddenGroup:
    """States of one shape that depend on one another position by position.

    Attributes:
        index: Its number.
        hidden_paths: Paths of its states.
        hidden_states: The states as the model's library has them, or their leaves for a plain function.
        hidden_invars: Their values before the step.
        hidden_outvars: Their values after it.
        varshape: Shape of the positions.
        slots: The values at each position, in the order of `concat_hidden`.
        positions: Where each element goes in one step.
        coupled: Some new state of the group depends directly on another new one within the step.
        slicing: Cuts direct parts out of the step.
        snap: For a learner of SnAp-n, which positions each one reaches within `n` steps; else None.
    """

    index: int
    hidden_paths: tuple[Path, ...]
    hidden_states: tuple[Any, ...]
    hidden_invars: tuple[Var, ...]
    hidden_outvars: tuple[Var, ...]
    varshape: tuple[int, ...]
    slots: tuple[Slot, ...]
    positions: Transition = field(repr=False)
    coupled: bool
    slicing: DirectSlicer = field(repr=False)
    snap: Any = field(default=None, repr=False)
    diagonal_jacobian = view(
        "views:diagonal_jacobian", "The derivative of next by previous states at each position, one array.", method=True
    )

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield f"{self.index}: {listed(map(path_name, self.hidden_paths))}"
        yield shape_text(self.varshape)
        yield f"{counted(self.num_state, 'value')} each"

    @functools.cached_property
    def transition_jaxpr(self) -> Jaxpr:
        """Next states by previous ones along direct paths; its constvars are held constant."""
        return self.slicing.cut(self.hidden_invars, self.hidden_outvars)

    @functools.cached_property
    def coupling(self) -> tuple[Jaxpr, tuple[int, ...]]:
        """New states by one another within the step along direct paths, and which of them depend on others."""
        return self.slicing.cut_between(self.hidden_outvars)

    @property
    def num_state(self) -> int:
        """Number of values at each position."""
        return len(self.slots)

    @property
    def transition_jaxpr_constvars(self) -> list[Var]:
        """The values that the transition holds constant."""
        return self.transition_jaxpr.constvars

    def transition(self, hidden_vals: Sequence[Any], input_vals: Sequence[Any]) -> list[jax.Array]:
        """Next states from previous ones.

        Args:
            hidden_vals: One array for each state, in the order of `hidden_paths`.
            input_vals: Values of `transition_jaxpr_constvars`.

        Returns:
            The next states in the same order.
        """
        return eval_jaxpr(self.transition_jaxpr, input_vals, *hidden_vals)

    @property
    def dtype(self) -> Any:
        """The dtype of a slot: real, and common to all states."""
        return jnp.finfo(jnp.result_type(*(var.aval.dtype for var in self.hidden_outvars))).dtype

    def value_slots(self, states: Sequence[Any]) -> list[jax.Array]:
        """Values (or tangents) of the states as one array `(..., *varshape)` for each slot, in a common dtype."""
        parts = [self.slot_of(slot, states[slot.state]) for slot in self.slots]
        dtype = jnp.result_type(*parts)
        return [part.astype(dtype) for part in parts]

    def cotangent_slots(self, cotangents: Sequence[Any]) -> list[jax.Array]:
        """Cotangents of the states as one array `(..., *varshape)` for each slot.

        In JAX the cotangent of `x + iy` is that of `x` minus `i` times that of `y`.
        """
        return self.value_slots([jnp.conj(c) if jnp.iscomplexobj(c) else c for c in cotangents])

    def slot_of(self, slot: Slot, state: Any) -> jax.Array:
        """One slot, `(..., *varshape)`, of a value of the state that it belongs to."""
        rank = self.hidden_outvars[slot.state].aval.ndim
        values = jnp.asarray(state) if slot.part is None else slot.part.take(state, rank)
        if slot.component is not None:
            values = jnp.imag(values) if slot.component is Component.IMAGINARY else jnp.real(values)
        return values.reshape(*state.shape[: state.ndim - rank], *self.varshape)

    def cotangent_states(self, slots: Sequence[jax.Array]) -> list[jax.Array]:
        """Cotangents of the states, put together from one array for each slot."""
        return [jnp.conj(value) if jnp.iscomplexobj(value) else value for value in self.value_states(slots)]

    def value_states(self, slots: Sequence[jax.Array]) -> list[jax.Array]:
        """Values of the states, put together from one array for each slot."""
        states = []
        for k, var in enumerate(self.hidden_outvars):
            own = [(slot, values) for slot, values in zip(self.slots, slots, strict=True) if slot.state == k]
            sides = [[values for slot, values in own if slot.component is side] for side in (None, *Component)]
            values = sides[0] or [jax.lax.complex(*pair) for pair in zip(*sides[1:], strict=True)]
            parts = [slot.part for slot, _ in own if slot.component is not Component.IMAGINARY]
            states.append(self._joined(parts, values, var.aval.shape))
        return states

    def _joined(self, parts: Sequence[Part | None], values: Sequence[jax.Array], shape: tuple[int, ...]) -> jax.Array:
        lead = values[0].shape[: values[0].ndim - len(self.varshape)]
        known = [part for part in parts if part is not None]
        if not known:
            return values[0].reshape(*lead, *shape)
        axis, length = known[0].axis, len(known[0].places)
        fitting = (*lead, *shape[:axis], length, *shape[axis + 1 :])
        return joined(known, [value.reshape(fitting) for value in values], shape)

    @functools.cached_property
    def placed(self) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
        """For each state the slot and the position of each of its elements."""
        return tuple(placed(self.slots, k, var.aval.shape) for k, var in enumerate(self.hidden_outvars))

    def is_packed(self, state: int) -> bool:
        """Whether a state of the group has several slots."""
        return any(slot.part is not None for slot in self.slots if slot.state == state)

    def concat_hidden(self, splitted_hid_vals: Sequence[Any]) -> jax.Array:
        """Joins the states into one array of shape `(*varshape, num_state)`."""
        return jnp.stack(self.value_slots(splitted_hid_vals), axis=-1)

    def split_hidden(self, concat_hid_vals: jax.Array) -> list[jax.Array]:
        """Takes an array of shape `(*varshape, num_state)` apart into the states."""
        return self.value_states([concat_hid_vals[..., slot] for slot in range(self.num_state)])

    def dict(self) -> dict[str, Any]:
        """The attributes by name."""
        return {name: getattr(self, name) for name in (*self.__dataclass_fields__, "num_state", "transition_jaxpr")}


def find_groups(
    program: StepProgram, slicer: DirectSlicer, patterns: Patterns, states: Sequence[Any]
) -> tuple[tuple[HiddenGroup, ...], tuple[CompilationRecord, ...]]:
    """Groups the hidden states of a program, in the order of their first states.

    Args:
        program: The step program.
        slicer: Cuts direct parts out of its data equations.
        patterns: Direct patterns, with previous and next states among the sources.
        states: The states as the model's library has them, one for each hidden leaf.

    Returns:
        The groups, and records of what was packed, relabelled, dropped or crosses shapes.
    """
    finder = _Finder(program, patterns)
    clusters = finder.connected(range(len(program.hidden)), finder.edges)  # whatever the shapes of their states
    found = sorted((one for cluster in clusters for one in finder.laid_out(cluster)), key=lambda one: one[0])
    groups = []
    for index, (members, layout, transition) in enumerate(found):
        invars, outvars = finder.variables(members)
        paths = tuple(program.hidden[k].path for k in members)
        finder.records += _transition_records(transition, paths)
        groups.append(
            HiddenGroup(
                index=index,
                hidden_paths=paths,
                hidden_states=tuple(states[k] for k in members),
                hidden_invars=invars,
                hidden_outvars=outvars,
                varshape=layout.shape,
                slots=layout.slots,
                positions=transition,
                coupled=any(a is not b and not patterns.of(a, b).is_empty for a in outvars for b in outvars),
                slicing=slicer,
            )
        )
    return tuple(groups), tuple(finder.records)


Found = tuple[list[int], Layout, Transition]


class _Finder:
    """Finds which states form a group, and how they lie over its positions."""

    def __init__(self, program: StepProgram, patterns: Patterns) -> None:
        self.program, self.patterns = program, patterns
        self.records: list[CompilationRecord] = []
        self.parts = [self._parts(k, leaf) for k, leaf in enumerate(program.hidden)]
        self.edges = {(i, j) for i in range(len(self.parts)) for j in range(len(self.parts)) if self._depends(i, j)}

    def variables(self, members: Sequence[int]) -> tuple[tuple[Var, ...], tuple[Var, ...]]:
        """The variables of some states before and after the step."""
        program = self.program
        return tuple(program.hidden_invars[k] for k in members), tuple(program.hidden_outvars[k] for k in members)

    def laid_out(self, cluster: Sequence[int]) -> list[Found]:
        """The groups of a cluster: one of all of its states where positions can be told, else one for each shape."""
        shapes = {k: self._shape(k) for k in cluster}
        members = self.connected(cluster, {(i, j) for i, j in self.edges if shapes.get(i) == shapes.get(j)})
        plain = [self._found(group, self._plain(group)) for group in members]
        if len(plain) == 1 and plain[0][2].kind is not TransitionKind.COLLAPSED:
            return plain
        layout = take_apart(*self._described(cluster), moving=self._moves(cluster))
        if layout is None:
            across = [(i, j) for i, j in sorted(self.edges) if i in shapes and shapes[i] != shapes[j]]
            self.records += [_across(self.program.hidden[i], self.program.hidden[j]) for i, j in across]
            return plain
        self.records += [_packed(self.program.hidden[k], layout, n) for n, k in enumerate(cluster)]
        return [self._found(list(cluster), layout)]

    def _moves(self, cluster: Sequence[int]) -> bool:
        """Whether each element of some states moves to one place of each at most, be it one known at run time alone."""
        invars, outvars = self.variables(cluster)
        pairs = [(new, old) for new in outvars for old in invars]
        still = [self.patterns.of(new, old) for new, old in pairs if not self.patterns.reaches_by_choice(old, new)]
        return not any(map(_joins, still))

    def _depends(self, i: int, j: int) -> bool:
        new = self.program.hidden_outvars[i]
        sources = self.program.hidden_invars[j], self.program.hidden_outvars[j]
        return i != j and not all(self.patterns.of(new, source).is_empty for source in sources)

    def connected(self, states: Sequence[int], edges: Iterable[tuple[int, int]]) -> list[list[int]]:
        """States that depend on one another directly, by some edges."""
        label = {k: k for k in states}
        for i, j in sorted(edges):
            if i in label:
                own, other = label[i], label[j]
                label = {k: min(own, other) if mark in (own, other) else mark for k, mark in label.items()}
        return [[k for k in states if label[k] == first] for first in sorted(set(label.values()))]

    def _parts(self, k: int, leaf: Leaf) -> tuple[Part | None, ...]:
        """The parts of a state whose last axis holds several values of one position, by declaration or use."""
        shape = leaf.aval.shape
        packed = leaf.packed or self._mixes_last_axis(k, shape)
        if packed and not leaf.packed:
            text = f"State `{leaf.name}` of shape {shape} mixes its last axis element by element: "
            text += f"it holds {shape[-1]} states."
            self.records.append(_record(DiagnosticKind.STATE_PACKED, DiagnosticLevel.INFO, text, [leaf.path]))
        return tuple(Part(len(shape) - 1, (entry,)) for entry in range(shape[-1])) if packed else (None,)

    def _mixes_last_axis(self, k: int, shape: tuple[int, ...]) -> bool:
        if not shape or not 1 < shape[-1] <= LARGEST_PACK:
            return False
        pattern = self.patterns.of(self.program.hidden_outvars[k], self.program.hidden_invars[k])
        return not pattern.is_identity and is_packed(pattern, shape[-1]) and _joins(pattern)

    def _shape(self, k: int) -> tuple[int, ...]:
        shape = self.program.hidden[k].aval.shape
        return shape if self.parts[k][0] is None else shape[:-1]

    def _plain(self, members: Sequence[int]) -> Layout:
        """States of one shape, packed ones by their last axis."""
        slots = tuple(Slot(n, part) for n, k in enumerate(members) for part in self.parts[k])
        return Layout(self._shape(members[0]), slots)

    def _with_components(self, members: Sequence[int], layout: Layout) -> Layout:
        """The real and the imaginary part of a complex value are two values of its position."""
        complex_states = [n for n, k in enumerate(members) if is_complex(self.program.hidden[k].aval)]
        slots = [
            replace(slot, component=component)
            for slot in layout.slots
            for component in (Component if slot.state in complex_states else [None])
        ]
        return Layout(layout.shape, tuple(slots))

    def _found(self, members: list[int], layout: Layout) -> Found:
        patterns = self._described(members)[1][0]
        layout = self._with_components(members, layout)
        return members, layout, find_transition(slot_patterns(patterns, layout.slots, math.prod(layout.shape)))

    def _described(self, members: Sequence[int]) -> tuple[list[tuple[int, ...]], list[list[list[Pattern]]]]:
        """The shapes of some states, and the patterns of new ones by previous ones and by new ones."""
        invars, outvars = self.variables(members)
        shapes = [self.program.hidden[k].aval.shape for k in members]
        return shapes, [[[self.patterns.of(new, old) for old in side] for new in outvars] for side in (invars, outvars)]


def _joins(pattern: Pattern) -> bool:
    return any(sparse.largest_count(numbers) > 1 for numbers in pattern.pairs())


def _packed(leaf: Leaf, layout: Layout, state: int) -> CompilationRecord:
    """What is said of a state of a cluster that was taken apart."""
    parts = [slot.part for slot in layout.slots if slot.state == state and slot.part is not None]
    text = f"State `{leaf.name}` of shape {leaf.aval.shape} "
    if parts:
        text += f"holds {len(parts)} values, along axis {parts[0].axis}, at each position of shape {layout.shape}."
    else:
        text += f"holds one value at each position of shape {layout.shape}, beside those of states of other shapes."
    return _record(DiagnosticKind.STATE_PACKED, DiagnosticLevel.INFO, text, [leaf.path])


def _transition_records(transition: Transition, paths: tuple[Path, ...]) -> list[CompilationRecord]:
    names = quoted(*paths)
    if transition.kind is TransitionKind.RELABELLED:
        text = f"The elements of {names} move to other positions from step to step; their history is followed there."
        return [_record(DiagnosticKind.GROUP_RELABELLED, DiagnosticLevel.INFO, text, paths)]
    if transition.kind is TransitionKind.COLLAPSED:
        text = (
            f"An element of {names} reaches several positions in one step. The history keeps its own position; "
            "use RTRL or SnAp for the rest."
        )
        return [_record(DiagnosticKind.GROUP_OFF_POSITION_DROPPED, DiagnosticLevel.WARNING, text, paths)]
    return []


def _across(new: Leaf, old: Leaf) -> CompilationRecord:
    text = (
        f"State `{new.name}` of shape {new.aval.shape} depends directly on `{old.name}` of shape {old.aval.shape}. "
        "States of different shapes are different groups, so this path carries no history."
    )
    return _record(DiagnosticKind.GROUP_DIRECT_ACROSS_SHAPES, DiagnosticLevel.WARNING, text, [new.path, old.path])


def _record(kind: DiagnosticKind, level: DiagnosticLevel, text: str, paths: Sequence[Path]) -> CompilationRecord:
    return CompilationRecord(kind, level, text, hidden_paths=tuple(paths))
