"""Many devices: where parameters, states and traces are placed on a mesh, and how a learner runs there.

Where an array is placed changes no result: XLA computes the same program on its parts, and exchanges what they need of
one another. So axes are told by their sizes. The batch is the first axis of the inputs. Units are the last axis of the
hidden states, and of the parameters and traces that have an axis of that size there.

A learner runs with all axes of a mesh left to XLA. It has no use for explicit ones, whose shardings are a part of the
types: results get the shardings that the arguments had.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from foretrace._jax import mesh_of, on_auto_axes
from foretrace._repr import one_line
from foretrace.program.records import Leaf

if TYPE_CHECKING:
    from foretrace.learners.learner import Carry, Learner


@dataclass(frozen=True)
class Shardings:
    """Where the arrays of a learner are placed.

    Attributes:
        params: A sharding for each parameter, in the form of the parameters.
        carry: One for each state and trace, in the form of the carry.
        sequence: For inputs and targets, time first and the batch behind it.
    """

    params: Any
    carry: "Carry"
    sequence: NamedSharding

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield f"mesh: {dict(self.sequence.mesh.shape)}"
        yield f"sequence: {self.sequence.spec}"


@dataclass(frozen=True)
class Axes:
    """Which axes of arrays are shared out.

    Attributes:
        mesh: The mesh.
        batch: The axis of the mesh for the batch; None for none.
        units: That for units.
        batch_size: Samples in a batch.
        unit_sizes: The sizes of the last axes of hidden states.
    """

    mesh: Mesh
    batch: str | None
    units: str | None
    batch_size: int
    unit_sizes: frozenset[int]

    def of_sample(self, shape: Sequence[int]) -> NamedSharding:
        """For a state or a trace: the batch is its first axis of that size, units are its last axis."""
        spec: list[str | None] = [None] * len(shape)
        if self.batch is not None and self.batch_size in shape:
            spec[list(shape).index(self.batch_size)] = self.batch
        return self._with_units(spec, shape)

    def of_param(self, shape: Sequence[int]) -> NamedSharding:
        """For a parameter, which has units alone."""
        return self._with_units([None] * len(shape), shape)

    def _with_units(self, spec: list[str | None], shape: Sequence[int]) -> NamedSharding:
        if self.units is not None and shape and shape[-1] in self.unit_sizes and spec[-1] is None:
            spec[-1] = self.units
        return NamedSharding(self.mesh, PartitionSpec(*spec))


def shardings_of(learner: "Learner", mesh: Mesh, batch: str | None, units: str | None) -> Shardings:
    """As `Learner.shardings`."""
    axes = _axes(learner, mesh, batch, units)
    placed = lambda place, tree: jax.tree.map(lambda leaf: place(leaf.shape), tree)
    params = placed(axes.of_param, jax.eval_shape(lambda: learner.params))
    linked = {link.relation.path for link in learner.plan.links}
    if units is not None:  # what no trace is kept for, such as a readout, stays whole
        leaves, form = jax.tree.flatten(params)
        paths = [leaf.path for leaf in learner.plan.program.params]
        whole = NamedSharding(mesh, PartitionSpec())
        chosen = [own if path in linked else whole for path, own in zip(paths, leaves, strict=True)]
        params = jax.tree.unflatten(form, chosen)
    carry = placed(axes.of_sample, jax.eval_shape(learner.init))
    return Shardings(params, carry, NamedSharding(mesh, PartitionSpec(None, batch)))


def _axes(learner: "Learner", mesh: Mesh, batch: str | None, units: str | None) -> Axes:
    for name, axis in (("batch", batch), ("units", units)):
        if axis is not None and axis not in mesh.shape:
            raise ValueError(f"`{name}={axis!r}` is no axis of the mesh, which has {', '.join(map(repr, mesh.shape))}.")
    if batch is not None and batch == units:
        raise ValueError(f"`batch` and `units` are two axes of a mesh; both are {batch!r}.")
    program = learner.plan.program
    shapes = [leaf.aval.shape for leaf in program.inputs if leaf.aval.shape]
    size = shapes[0][0] if shapes else 1
    widths = frozenset(group.varshape[-1] for group in learner.graph.hidden_groups if group.varshape)
    if batch is not None and size % mesh.shape[batch]:
        raise ValueError(
            f"A batch of {size} cannot be shared out over the {mesh.shape[batch]} devices of the axis {batch!r}: "
            "compile the learner for a batch that they divide."
        )
    uneven = [width for width in sorted(widths) if units is not None and width % mesh.shape[units]]
    if units is not None and uneven:
        raise ValueError(
            f"{uneven[0]} units cannot be shared out over the {mesh.shape[units]} devices of the axis {units!r}: "
            "take a number of units that they divide."
        )
    return Axes(mesh, batch, units, size, widths)


def on_devices(function: Callable[..., Any], given: tuple[Any, ...], like: Callable[[], Any]) -> Any:
    """Calls a function of trees of arrays where these are placed.

    Args:
        function: The function.
        given: Its arguments.
        like: Gives the shardings of what it returns, or a prefix of them.
    """
    mesh = mesh_of(given)
    return function(*given) if mesh is None else on_auto_axes(function, mesh, like)(*given)


def specs(tree: Any) -> Any:
    """How each array of a tree is sharded by its type."""
    return jax.tree.map(lambda leaf: jax.typeof(leaf).sharding.spec, tree)


def output_spec(outputs: Sequence[Leaf], xs: Any) -> PartitionSpec:
    """How the outputs of a sequence are sharded: along the batch as its inputs are, where all of them have one."""
    first = jax.tree.leaves(xs)[0]
    batch, spec = jnp.shape(first)[1:2], jax.typeof(first).sharding.spec
    whole = len(spec) < 2 or any(leaf.aval.shape[:1] != batch for leaf in outputs)
    return PartitionSpec() if whole else PartitionSpec(None, spec[1])
