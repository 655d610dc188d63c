"""Hidden groups: states of one shape whose next values depend on one another position by position.

The direct patterns of all next states by all previous states, and by one another within the step, connect states;
connected states of one shape form a group. A group knows its transition: the jaxpr of its next states by its
previous ones with every mixing output held constant, and from it the derivative `D` at each position.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from foretrace._jax import Jaxpr, Var, eval_jaxpr
from foretrace.compiler import sparse
from foretrace.compiler.blocks import Block
from foretrace.compiler.patterns import Patterns
from foretrace.compiler.positions import Slot, Transition, TransitionKind, find_transition, is_packed, slot_blocks
from foretrace.compiler.slicing import DirectSlicer
from foretrace.program.diagnostics import CompilationRecord, DiagnosticKind, DiagnosticLevel, Path
from foretrace.program.records import Leaf, StepProgram, path_name

LARGEST_PACK = 4


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

    def diagonal_jacobian(self, hidden_vals: Sequence[Any], input_vals: Sequence[Any]) -> jax.Array:
        """The derivative of next by previous states at each position, mixing outputs held constant.

        Args:
            hidden_vals: One array for each state, in the order of `hidden_paths`.
            input_vals: Values of `transition_jaxpr_constvars`.

        Returns:
            An array of shape `(*varshape, num_state, num_state)`: entry `[p, i, j]` is the derivative of new slot `i`
            by old slot `j` of position `p`. In a relabelled group the new value stands at `positions.targets`.
        """
        entries = self.jacobian_entries(hidden_vals, input_vals)
        zero = jnp.zeros(self.varshape, jnp.result_type(*hidden_vals))
        rows = [jnp.stack([zero if entry is None else entry for entry in row], axis=-1) for row in entries]
        return jnp.stack(rows, axis=-2)

    def jacobian_entries(self, hidden_vals: Sequence[Any], input_vals: Sequence[Any]) -> list[list[jax.Array | None]]:
        """As `diagonal_jacobian`, an array `(*varshape,)` for each entry; None where new does not depend on old."""
        _, pullback = jax.vjp(lambda *values: self.transition(values, input_vals), *hidden_vals)
        rows = [self._row(pullback, slot, hidden_vals) for slot in range(self.num_state)]
        return [
            [None if block.is_empty else entry for entry, block in zip(row, blocks, strict=True)]
            for row, blocks in zip(rows, self.positions.blocks, strict=True)
        ]

    def _row(self, pullback: Any, slot: int, hidden_vals: Sequence[Any]) -> list[jax.Array]:
        """Derivatives of one slot by all: one cotangent of ones for each colour, read at sources of that colour."""
        dtype = jnp.result_type(*hidden_vals)
        if self.positions.kind is not TransitionKind.COLLAPSED:
            return self._pulled(pullback, slot, jnp.ones(self.varshape, dtype), hidden_vals)
        row = [jnp.zeros(self.varshape, dtype)] * self.num_state
        for color in range(self.positions.num_colors):
            mask = jnp.asarray(self.positions.colors == color, dtype).reshape(self.varshape)
            pulled = self._pulled(pullback, slot, mask, hidden_vals)
            row = [entry + part * mask for entry, part in zip(row, pulled, strict=True)]
        staying = [(targets >= 0).reshape(self.varshape) for targets in self.positions.targets[slot]]
        return [jnp.where(stays, entry, 0) for stays, entry in zip(staying, row, strict=True)]

    def _pulled(self, pullback: Any, slot: int, values: jax.Array, hidden_vals: Sequence[Any]) -> list[jax.Array]:
        cotangents = self.states_of([values if k == slot else jnp.zeros_like(values) for k in range(self.num_state)])
        fitting = [part.astype(value.dtype) for part, value in zip(cotangents, hidden_vals, strict=True)]
        return self.slots_of(pullback(fitting))

    def slots_of(self, states: Sequence[Any]) -> list[jax.Array]:
        """The states, one for each of the group, as one array `(..., *varshape)` for each slot, in a common dtype."""
        dtype = jnp.result_type(*states)
        parts = [
            states[slot.state] if slot.index is None else states[slot.state][..., slot.index] for slot in self.slots
        ]
        return [part.astype(dtype) for part in parts]

    def states_of(self, slots: Sequence[jax.Array]) -> list[jax.Array]:
        """The states, put together from one array for each slot."""
        states = []
        for k in range(len(self.hidden_paths)):
            own = [values for slot, values in zip(self.slots, slots, strict=True) if slot.state == k]
            states.append(jnp.stack(own, axis=-1) if self._is_packed(k) else own[0])
        return states

    def concat_hidden(self, splitted_hid_vals: Sequence[Any]) -> jax.Array:
        """Joins the states into one array of shape `(*varshape, num_state)`."""
        return jnp.stack(self.slots_of(splitted_hid_vals), axis=-1)

    def split_hidden(self, concat_hid_vals: jax.Array) -> list[jax.Array]:
        """Takes an array of shape `(*varshape, num_state)` apart into the states."""
        return self.states_of([concat_hid_vals[..., slot] for slot in range(self.num_state)])

    def dict(self) -> dict[str, Any]:
        """The attributes by name."""
        return {name: getattr(self, name) for name in (*self.__dataclass_fields__, "num_state", "transition_jaxpr")}

    def _is_packed(self, state: int) -> bool:
        return next(slot.index is not None for slot in self.slots if slot.state == state)


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
    records: list[CompilationRecord] = []
    packed = [_pack(leaf, k, program, patterns, records) for k, leaf in enumerate(program.hidden)]
    members = _connect(program, packed, patterns, records)
    groups = [_group(i, group, program, slicer, patterns, packed, states, records) for i, group in enumerate(members)]
    return tuple(groups), tuple(records)


def _pack(leaf: Leaf, k: int, program: StepProgram, patterns: Patterns, records: list[CompilationRecord]) -> bool:
    shape = leaf.aval.shape
    if leaf.packed or not shape or not 1 < shape[-1] <= LARGEST_PACK:
        return leaf.packed
    block = patterns.of(program.hidden_outvars[k], program.hidden_invars[k])
    if block.is_identity or not is_packed(block, shape[-1]) or not _joins(block):
        return False
    text = f"State `{leaf.name}` of shape {shape} mixes its last axis element by element: it holds {shape[-1]} states."
    records.append(_record(DiagnosticKind.STATE_PACKED, DiagnosticLevel.INFO, text, [leaf.path]))
    return True


def _joins(block: Block) -> bool:
    return any(sparse.largest_count(numbers) > 1 for numbers in block.pairs())


def _connect(
    program: StepProgram, packed: Sequence[bool], patterns: Patterns, records: list[CompilationRecord]
) -> list[list[int]]:
    shapes = [leaf.aval.shape[:-1] if p else leaf.aval.shape for leaf, p in zip(program.hidden, packed, strict=True)]
    label = list(range(len(shapes)))
    for i, new in enumerate(program.hidden_outvars):
        for j in range(len(shapes)):
            sources = (program.hidden_invars[j], program.hidden_outvars[j])
            if i == j or all(patterns.of(new, source).is_empty for source in sources):
                continue
            if shapes[i] == shapes[j]:
                label = [min(label[i], label[j]) if mark in (label[i], label[j]) else mark for mark in label]
            else:
                records.append(_across(program.hidden[i], program.hidden[j]))
    return [[k for k, mark in enumerate(label) if mark == first] for first in sorted(set(label))]


def _group(
    index: int,
    members: Sequence[int],
    program: StepProgram,
    slicer: DirectSlicer,
    patterns: Patterns,
    packed: Sequence[bool],
    states: Sequence[Any],
    records: list[CompilationRecord],
) -> HiddenGroup:
    leaves = [program.hidden[k] for k in members]
    invars = [program.hidden_invars[k] for k in members]
    outvars = [program.hidden_outvars[k] for k in members]
    shape = leaves[0].aval.shape[:-1] if packed[members[0]] else leaves[0].aval.shape
    slots = [
        Slot(n, entry)
        for n, k in enumerate(members)
        for entry in (range(program.hidden[k].aval.shape[-1]) if packed[k] else [None])
    ]
    blocks = [[patterns.of(new, old) for old in invars] for new in outvars]
    transition = find_transition(slot_blocks(blocks, slots, int(np.prod(shape, dtype=int))))
    paths = tuple(leaf.path for leaf in leaves)
    records += _transition_records(transition, paths)
    return HiddenGroup(
        index=index,
        hidden_paths=paths,
        hidden_states=tuple(states[k] for k in members),
        hidden_invars=tuple(invars),
        hidden_outvars=tuple(outvars),
        varshape=tuple(shape),
        slots=tuple(slots),
        positions=transition,
        coupled=any(a is not b and not patterns.of(a, b).is_empty for a in outvars for b in outvars),
        slicing=slicer,
    )


def _transition_records(transition: Transition, paths: tuple[Path, ...]) -> list[CompilationRecord]:
    names = ", ".join(f"`{path_name(path)}`" for path in paths)
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
