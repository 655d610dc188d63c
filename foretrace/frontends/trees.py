"""How a pytree with units becomes a flat list of arrays, and back.

A step program knows arrays alone. `TreeSpec` remembers what flattening takes off a user's value: the structure, the
path of every array, its shape and dtype, and its physical unit. Going back puts all of it on again. Going forth checks
that a later value has the same form, so that a wrong unit or shape is met by name and never computed with.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import PyTreeDef

from foretrace._jax import ShapedArray, is_float
from foretrace._units import is_quantity, unit_of, unit_text, without_unit
from foretrace.errors import StateMismatchError
from foretrace.program.diagnostics import Path
from foretrace.program.records import Leaf, path_name

TRACED = "The step was traced with that form: pass values of the same form, or compile anew."


@dataclass(frozen=True)
class TreeSpec:
    """The form of a pytree, units included.

    Attributes:
        treedef: JAX's structure of the value; a quantity is a node of it that holds the unit.
        skeleton: The structure with every quantity taken as one leaf, so that it does not know units.
        paths: Where each array stands, one path per leaf of `treedef`.
        units: The unit of each array; None for a plain one.
        avals: The shape and dtype of each array.
    """

    treedef: PyTreeDef
    skeleton: PyTreeDef
    paths: tuple[Path, ...]
    units: tuple[Any, ...]
    avals: tuple[jax.ShapeDtypeStruct, ...]

    def flatten(self, value: Any, error: type[Exception] = ValueError, advice: str = TRACED) -> list[Any]:
        """The arrays of a value of this form; `error`, with advice, is raised for a value of another form."""
        found = tree_spec(value)
        problem = structure_difference(self, found) or _array_difference(self, found)
        if problem:
            raise error(f"{problem} {advice}")
        leaves = jax.tree.leaves(value)
        return [
            leaf if isinstance(leaf, jax.Array) and leaf.dtype == aval.dtype else jnp.asarray(leaf, aval.dtype)
            for leaf, aval in zip(leaves, self.avals, strict=True)
        ]

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """The value whose arrays these are, with its structure and units."""
        return jax.tree.unflatten(self.treedef, leaves)

    def leaves(self, avals: Sequence[ShapedArray], owner: Path = (), packed: bool = False) -> tuple[Leaf, ...]:
        """One `Leaf` per array, with the abstract values that a trace gave them."""
        return tuple(Leaf(path, aval, packed, owner) for path, aval in zip(self.paths, avals, strict=True))


@dataclass(frozen=True)
class PathForm:
    """The form of a dictionary of values by path, in an order of its own; it offers what `TreeSpec` does.

    Attributes:
        parts: The form of each value that the step uses.
        unused: The forms of values that the step does not use. They may be given, and are given back as zeros.
        packed: The paths of values whose last axis holds several states of one neuron.
    """

    parts: dict[Path, TreeSpec]
    unused: dict[Path, TreeSpec] = field(default_factory=dict)
    packed: frozenset[Path] = frozenset()

    @property
    def paths(self) -> tuple[Path, ...]:
        """Where each array stands."""
        return tuple(chain.from_iterable(spec.paths for spec in self.parts.values()))

    @property
    def avals(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """The shape and dtype of each array."""
        return tuple(chain.from_iterable(spec.avals for spec in self.parts.values()))

    def by_path(self, leaves: Sequence[Any]) -> dict[Path, list[Any]]:
        """The arrays of each value, out of a list of all."""
        rest = iter(leaves)
        return {path: [next(rest) for _ in spec.paths] for path, spec in self.parts.items()}

    def flatten(self, value: Any, error: type[Exception] = StateMismatchError, advice: str = TRACED) -> list[Any]:
        """The arrays of these values; a `StateMismatchError` says what is missing or has another form."""
        flat: list[Any] = []
        for path, spec in self.parts.items():
            if not isinstance(value, Mapping) or path not in value:
                raise StateMismatchError(
                    f"There is no value for `{path_name(path)}`. Parameters and states of a module are given "
                    "by path, as `learner.params` and `learner.carry.state` are."
                )
            flat += spec.flatten(value[path], StateMismatchError, advice)
        return flat

    def unflatten(self, leaves: Sequence[Any]) -> dict[Path, Any]:
        """The values by path, with zeros for those that the step does not use."""
        used = {path: self.parts[path].unflatten(own) for path, own in self.by_path(leaves).items()}
        zeros = {path: [jnp.zeros(aval.shape, aval.dtype) for aval in spec.avals] for path, spec in self.unused.items()}
        return used | {path: spec.unflatten(zeros[path]) for path, spec in self.unused.items()}

    def leaves(self, avals: Sequence[ShapedArray]) -> tuple[Leaf, ...]:
        """One `Leaf` per array, owned by the value that it is a part of."""
        own = self.by_path(avals)
        parts = (spec.leaves(own[path], path, path in self.packed) for path, spec in self.parts.items())
        return tuple(chain.from_iterable(parts))


Form = TreeSpec | PathForm


def tree_spec(value: Any, prefix: Path = (), bare: str = "value") -> TreeSpec:
    """Reads the form of a pytree.

    Args:
        value: Any pytree of arrays, scalars, abstract arrays or quantities.
        prefix: Stands before the keys of every path.
        bare: Stands before a path that has no prefix and begins with no name: of a bare array, or of one in a tuple.

    Returns:
        The structure, paths, units and abstract values.

    Raises:
        TypeError: A leaf is not a JAX type.

    Examples:
        >>> import brainunit as u, jax.numpy as jnp
        >>> spec = tree_spec({"v": jnp.zeros(2) * u.mV})
        >>> spec.paths, spec.units
        ((('v',),), (Unit("mV"),))
    """
    nodes, skeleton = jax.tree_util.tree_flatten_with_path(value, is_leaf=is_quantity)
    paths: list[Path] = []
    units: list[Any] = []
    for keys, node in nodes:
        path = prefix + tuple(_key_name(key) for key in keys)
        paths.append(path if path and isinstance(path[0], str) else (bare, *path))
        units.append(unit_of(node))
    leaves, treedef = jax.tree.flatten(value)
    if len(leaves) != len(paths):
        raise TypeError("A quantity holds a tree of arrays; only a quantity of one array can enter a step.")
    avals = tuple(_abstract(leaf, path) for leaf, path in zip(leaves, paths, strict=True))
    return TreeSpec(treedef, skeleton, tuple(paths), tuple(units), avals)


def _abstract(leaf: Any, path: Path) -> jax.ShapeDtypeStruct:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    if isinstance(leaf, jax.Array):  # far quicker than tracing, which a number or a NumPy array needs
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=getattr(leaf, "weak_type", False))
    try:
        return jax.eval_shape(lambda x: x, leaf)
    except TypeError as error:
        kind = "function" if callable(leaf) and not isinstance(leaf, type) else type(leaf).__name__
        raise TypeError(f"`{path_name(path)}` is no array but a {kind}.") from error


def structure_difference(expected: TreeSpec, found: TreeSpec) -> str | None:
    """Says where two forms differ in structure or unit; None where they agree."""
    if expected.skeleton != found.skeleton:
        return f"The structure is {found.skeleton}, where {expected.skeleton} was expected."
    for path, want, got in zip(expected.paths, expected.units, found.units, strict=True):
        if want != got:
            return f"`{path_name(path)}` has the unit `{unit_text(got)}`, where `{unit_text(want)}` was expected."
    return None


def same_structure(one: Any, other: Any) -> bool:
    """Whether two pytrees have the same structure; units are part of it."""
    structures: list[PyTreeDef] = [jax.tree.structure(one), jax.tree.structure(other)]
    return structures[0] == structures[1]


def _array_difference(expected: TreeSpec, found: TreeSpec) -> str | None:
    for path, want, got in zip(expected.paths, expected.avals, found.avals, strict=True):
        if want.shape != got.shape or not _converts(got, want):
            found_text, wanted_text = f"{got.dtype}{list(got.shape)}", f"{want.dtype}{list(want.shape)}"
            return f"`{path_name(path)}` is {found_text}, where {wanted_text} was expected."
    return None


def _converts(got: jax.ShapeDtypeStruct, want: jax.ShapeDtypeStruct) -> bool:
    """Whether no information is lost: the same dtype, or a Python number of a kind that the other can hold."""
    return got.dtype == want.dtype or (bool(got.weak_type) and (is_float(want) or not is_float(got)))


def form_text(value: Any) -> str:
    """The arrays of a value in short, for messages: `float64[3], int32[]`."""
    texts = []
    for node in jax.tree.leaves(value, is_leaf=is_quantity):
        unit = f" {node.unit}" if is_quantity(node) else ""
        array = without_unit(node)
        shaped = hasattr(array, "shape") and hasattr(array, "dtype")
        texts.append(f"{array.dtype}{list(array.shape)}{unit}" if shaped else type(array).__name__)
    return ", ".join(texts) or "nothing"


def _key_name(key: Any) -> Any:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return getattr(key, attribute)
    return str(key)
