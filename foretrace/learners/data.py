"""How an input enters a learner: one step, or many at once with time as the first axis.

A plain value is one step. `MultiStepData` marks a value that has a leading axis of time; the learner runs all of its
steps in one call. Plain values beside it are the same at every step. Either kind becomes `Stacked` here: the inputs of
`K` steps as flat arrays, one step being `K = 1`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from foretrace._repr import arrays_text, one_line
from foretrace.errors import ExampleInputError
from foretrace.frontends import TracedModel


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SingleStepData:
    """Marks an input of one step, as a plain value is.

    Attributes:
        data: Any pytree of arrays.

    Examples:
        >>> import jax.numpy as jnp
        >>> SingleStepData(jnp.ones(3)).data.shape
        (3,)
    """

    data: Any

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield arrays_text(self.data)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MultiStepData:
    """Marks an input of several steps.

    Attributes:
        data: Any pytree of arrays whose first axis is time.

    Examples:
        >>> import jax.numpy as jnp
        >>> MultiStepData(jnp.ones((10, 3))).data.shape
        (10, 3)
    """

    data: Any

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield arrays_text(self.data)


class Stacked(NamedTuple):
    """What a learner was called with.

    Attributes:
        inputs: The flat inputs of the model, with a leading axis of steps.
        external: What the rule takes beside them, with that axis too; or None.
        length: The number of steps; None for a call of one step without a time axis.
    """

    inputs: list[Any]
    external: Any
    length: int | None


def stack_inputs(model: TracedModel, args: Sequence[Any], kwargs: Mapping[str, Any], external: Any = None) -> Stacked:
    """The inputs of a call as flat arrays with a leading axis of steps, checked against the traced form."""
    values = (tuple(args), dict(kwargs))
    length = _length((values, external))
    one = model.flatten_inputs(*one_step(values[0]), **one_step(values[1]))
    repeated = lambda a: jnp.broadcast_to(jnp.asarray(a), (length or 1, *jnp.shape(a)))
    stacked, beside = _unmarked((values, external), lambda a: a, repeated)
    leaves = jax.tree.leaves(stacked)
    inputs = [jnp.asarray(leaf, first.dtype) for leaf, first in zip(leaves, one, strict=True)]
    return Stacked(inputs, beside, length)


def one_step(tree: Any) -> Any:
    """A tree of inputs without marks, with the first step of each that has several."""
    return _unmarked(tree, lambda a: a[0], lambda a: a)


def has_marks(tree: Any) -> bool:
    """Whether anything in a tree is marked."""
    return any(_is_marked(node) for node in jax.tree.leaves(tree, is_leaf=_is_marked))


def _unmarked(tree: Any, several: Callable[[Any], Any], one: Callable[[Any], Any]) -> Any:
    """A tree of inputs without marks, after a function for arrays of several steps and one for those of a single."""

    def read(node: Any) -> Any:
        if isinstance(node, MultiStepData):
            return jax.tree.map(several, node.data)
        return jax.tree.map(one, node.data if isinstance(node, SingleStepData) else node)

    return jax.tree.map(read, tree, is_leaf=_is_marked)


def _length(tree: Any) -> int | None:
    nodes = [n for n in jax.tree.leaves(tree, is_leaf=_is_marked) if isinstance(n, MultiStepData)]
    leaves = jax.tree.leaves(nodes)
    if not nodes:
        return None
    lengths = sorted({jnp.shape(leaf)[0] if jnp.ndim(leaf) else 0 for leaf in leaves})
    if len(lengths) != 1 or lengths[0] == 0:
        raise ExampleInputError(
            f"`MultiStepData` of {lengths} steps. Time is the first axis of every array in it; all have the same "
            "number of steps, at least one."
        )
    return int(lengths[0])


def _is_marked(node: Any) -> bool:
    return isinstance(node, SingleStepData | MultiStepData)
