"""What a stream is made of: items from any iterable, checked, and gathered into pieces for one compiled function.

An item is `(x, y)`: the input of one step and its target. `(x, None)`, or `x` alone, is predicted and not learned from;
`(x, y, external)` adds what some rules take at every step. A piece is what is handed to the compiled function at once.
Steps in it are predicted and learned from in order, so its length changes speed and delay, and no result.

What is wrong with an item is found before anything is computed with it: the items before it still count.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from foretrace._repr import shape_text
from foretrace.frontends.trees import form_text

SLAB = 4096
"""Steps of arrays that are looked through at once."""


class ItemError(ValueError):
    """An item of a stream that cannot be learned from."""


class Piece(NamedTuple):
    """Some steps: arrays with a leading axis of steps.

    Attributes:
        x: The arrays of the inputs.
        y: Those of the targets, with zeros where there is none; None where no step has one.
        labelled: Which steps have a target; None for all of them.
        external: What the rule takes beside the inputs; None for most rules.
        length: The number of steps.
    """

    x: list[np.ndarray]
    y: list[np.ndarray] | None
    labelled: np.ndarray | None
    external: list[np.ndarray] | None
    length: Any

    def each(self, change: Callable[[Any], Any], length: Any) -> "Piece":
        """A piece whose arrays are changed by a function, with another length."""
        x, y, labelled, external = jax.tree.map(change, (self.x, self.y, self.labelled, self.external))
        return Piece(x, y, labelled, external, length)


class Taken(NamedTuple):
    """What a source gave.

    Attributes:
        piece: The steps; None for none.
        failure: What ended the source, or was wrong with the item behind these steps; None where it goes on.
        ended: Whether the source has come to its end.
    """

    piece: Piece | None
    failure: BaseException | None = None
    ended: bool = False


@dataclass(frozen=True)
class Form:
    """The form of one part of an item.

    Attributes:
        name: What it is called in messages.
        tree: Its structure.
        shapes: The shape of each array.
        dtypes: The dtype of each.
    """

    name: str
    tree: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[np.dtype[Any], ...]

    @classmethod
    def of(cls, name: str, value: Any) -> "Form":
        """The form of a first value."""
        leaves, tree = jax.tree.flatten(_plain(value))
        arrays = [_array(name, leaf) for leaf in leaves]
        return cls(name, tree, tuple(a.shape for a in arrays), tuple(np.dtype(jnp.asarray(a).dtype) for a in arrays))

    @classmethod
    def of_inputs(cls, learner: Any) -> "Form":
        """The form of the inputs of one step of a pure learner."""
        spec = learner.model.flat.inputs
        return cls("x", spec.treedef, tuple(a.shape for a in spec.avals), tuple(np.dtype(a.dtype) for a in spec.avals))

    @property
    def text(self) -> str:
        """The form in words."""
        return ", ".join(f"{dtype}{list(shape)}" for shape, dtype in zip(self.shapes, self.dtypes, strict=True))

    def arrays(self, value: Any) -> list[np.ndarray]:
        """The arrays of a value of this form.

        Raises:
            ItemError: It has another form.
        """
        if len(self.shapes) == 1 and (type(value) is np.ndarray or isinstance(value, list | float | int)):
            leaves = [value]
        else:
            leaves, tree = jax.tree.flatten(_plain(value))
            if tree != self.tree:
                raise ItemError(f"`{self.name}` is {form_text(value)}, and {self.text} is wanted.")
        return [self._checked(leaf, place) for place, leaf in enumerate(leaves)]

    def _checked(self, leaf: Any, place: int) -> np.ndarray:
        array, dtype = _array(self.name, leaf), self.dtypes[place]
        if array.shape != self.shapes[place]:
            raise ItemError(
                f"`{self.name}` has the shape {shape_text(array.shape)}, and "
                f"{shape_text(self.shapes[place])} is wanted."
            )
        if array.dtype == dtype:
            return array
        if not np.can_cast(array.dtype, dtype, "same_kind"):
            raise ItemError(f"`{self.name}` is {array.dtype}, and {dtype} is wanted.")
        return array.astype(dtype)


@dataclass
class Forms:
    """The forms of the parts of items; those that are not known yet are None, until the first item shows them.

    Attributes:
        inputs: How a value `x` becomes the inputs of a step.
        x: The form of these inputs.
        y: The form of targets.
        external: The form of what a rule takes beside them; None where it takes nothing.
        takes_external: Whether it takes anything.
    """

    inputs: Callable[[Any], Any]
    x: Form
    takes_external: bool
    y: Form | None = None
    external: Form | None = None

    @classmethod
    def of(cls, learner: Any) -> "Forms":
        """The forms of the items that a pure learner takes."""
        takes = learner.rule.external is not None
        return cls(lambda x: (learner.model.as_inputs(x), {}), Form.of_inputs(learner), takes)

    def row(self, item: Any) -> "Row":
        """The arrays of one item.

        Raises:
            ItemError: The item has another form than the step, or than the items before.
        """
        x, y, external = _parts(item)
        if external is not None and not self.takes_external:
            raise ItemError("it has a third part, and the rule takes nothing beside the inputs.")
        own = x if len(self.x.shapes) == 1 and type(x) in (np.ndarray, list, float, int) else self.inputs(x)
        arrays = self.x.arrays(own)
        if y is not None and self.y is None:
            self.y = Form.of("y", y)
        if external is not None and self.external is None:
            self.external = Form.of("external", external)
        if (external is None) != (self.external is None):
            raise ItemError(
                "it lacks what the rule takes beside the input, the third part of an item, which others have."
            )
        return Row(
            arrays,
            None if y is None or self.y is None else self.y.arrays(y),
            None if external is None or self.external is None else self.external.arrays(external),
        )

    def piece(self, rows: Sequence["Row"]) -> Piece | None:
        """The arrays of some items, side by side."""
        if not rows:
            return None
        known = np.array([row.y is not None for row in rows])
        y = None
        if self.y is not None and known.any():
            zeros = [np.zeros(*form) for form in zip(self.y.shapes, self.y.dtypes, strict=True)]
            y = _stacked([row.y or zeros for row in rows])
        labelled = None if y is not None and known.all() else known
        external = None if self.external is None else _stacked([row.external or [] for row in rows])
        return Piece(_stacked([row.x for row in rows]), y, labelled, external, len(rows))


class Row(NamedTuple):
    """The arrays of one item."""

    x: list[np.ndarray]
    y: list[np.ndarray] | None
    external: list[np.ndarray] | None


def _parts(item: Any) -> tuple[Any, Any, Any]:
    if not isinstance(item, tuple):
        return item, None, None
    if not 2 <= len(item) <= 3:
        raise ItemError(
            f"it is a tuple of {len(item)}, and an item is `(x, y)`, `(x, None)`, `x`, or `(x, y, external)`."
        )
    return item if len(item) == 3 else (*item, None)


def _plain(value: Any) -> Any:
    """A list of numbers as one array, which a pytree would take for many."""
    return np.asarray(value) if isinstance(value, list) else value


def _array(name: str, leaf: Any) -> np.ndarray:
    try:
        array = np.asarray(leaf)
    except (TypeError, ValueError):
        array = np.asarray(None)
    if array.dtype.kind in "OUSMm":
        raise ItemError(f"`{name}` holds {form_text(leaf)}, and arrays of numbers are wanted.")
    return array


def _stacked(rows: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
    if len(rows) == 1:
        return [leaf[None] for leaf in rows[0]]
    return [np.stack(leaves) for leaves in zip(*rows, strict=True)]


def first_not_finite(piece: Piece) -> tuple[int, str] | None:
    """The first step of a piece with a NaN or an infinity, and which part of it; None where there is none."""
    found = [
        (int(np.argmin(_finite_rows(array))), name)
        for name, arrays in (("x", piece.x), ("y", piece.y or ()), ("external", piece.external or ()))
        for array in arrays
        if array.dtype.kind in "fc" and not _surely_finite(array) and not np.isfinite(array).all()
    ]
    return min(found, default=None)


def _surely_finite(array: np.ndarray) -> bool:
    """Whether the sum of squares is finite: one quick look that is right where it says yes."""
    return math.isfinite(np.vdot(array, array).real)


def _finite_rows(array: np.ndarray) -> np.ndarray:
    return np.isfinite(array).reshape(len(array), -1).all(axis=1)


def cut(piece: Piece, end: int) -> Piece | None:
    """The first steps of a piece; None for none."""
    if not end:
        return None
    return piece.each(lambda array: array[:end], end)


def checked(taken: Taken, done: int) -> Taken:
    """What was taken, up to the first step that is not finite.

    Args:
        taken: What a source gave.
        done: Steps before it.
    """
    found = None if taken.piece is None else first_not_finite(taken.piece)
    if found is None or taken.piece is None:
        return taken
    place, name = found
    error = ItemError(f"Item {done + place + 1}: `{name}` holds a NaN or an infinity. Repair it or leave the item out.")
    return Taken(cut(taken.piece, place), error)


class ArraysSource:
    """A pair of arrays with time first: step after step, from a first one on."""

    def __init__(self, xs: Any, ys: Any, forms: Forms, start: int) -> None:
        x, y = forms.x, Form.of("y", np.zeros(ys.shape[1:], ys.dtype))
        forms.y = y
        if len(x.shapes) != 1 or xs.shape[1:] != x.shapes[0] or len(ys) != len(xs):
            raise ValueError(
                f"A stream of arrays is `(xs, ys)`, time first and of one length, with steps of {x.text}; got "
                f"{shape_text(xs.shape)} and {shape_text(ys.shape)}."
            )
        if not np.can_cast(xs.dtype, x.dtypes[0], "same_kind"):
            raise ValueError(f"`xs` is {xs.dtype}, and a step takes {x.dtypes[0]}.")
        self.given, self.dtypes, self.at = (np.asarray(xs), np.asarray(ys)), (x.dtypes[0], y.dtypes[0]), start
        self.part, self.first, self.sound = (self.given[0][:0], self.given[1][:0]), start, True

    def take(self, most: int) -> Taken:
        """The next steps, at most so many."""
        at, total = self.at, len(self.given[0])
        end = min(at + most, total)
        if end <= at:
            return Taken(None, ended=True)
        if self.first + len(self.part[0]) < end:
            self._load(at, max(most, SLAB))
        xs, ys = self.part
        piece = Piece(
            [xs[at - self.first : end - self.first]], [ys[at - self.first : end - self.first]], None, None, end - at
        )
        self.at = end
        taken = Taken(piece, None, end == total)
        return taken if self.sound else checked(taken, at)

    def _load(self, at: int, most: int) -> None:
        """Prepares the next steps: in their dtype, and looked through for what is not finite."""
        x, y = (np.asarray(a[at : at + most], dtype) for a, dtype in zip(self.given, self.dtypes, strict=True))
        self.part, self.first = (x, y), at
        self.sound = first_not_finite(Piece([x], [y], None, None, len(x))) is None


class ItemsSource:
    """Any iterable of items.

    Args:
        source: The iterable.
        forms: The forms of its items.
        start: Steps before its first item.
        hold: For how many seconds items are gathered at most; None to wait for a whole piece. A source with a method
            `ready` is never waited for.
    """

    def __init__(self, source: Any, forms: Forms, start: int, hold: float | None = None) -> None:
        self.iterator: Any = iter(source)
        self.forms, self.done, self.more = forms, start, _more(source, hold)

    def take(self, most: int) -> Taken:
        """The next steps, at most so many, and at least one unless the source ends."""
        rows: list[Row] = []
        began = 0.0
        try:
            for item in self.iterator:
                rows.append(numbered(self.forms, item, self.done + len(rows) + 1))
                began = began or time.monotonic()
                if len(rows) >= most or not self.more(began):
                    return self._taken(rows)
        except BaseException as error:  # what came before it counts, whatever it is
            return self._taken(rows, error)
        return self._taken(rows, ended=True)

    def _taken(self, rows: Sequence[Row], failure: BaseException | None = None, ended: bool = False) -> Taken:
        taken = checked(Taken(self.forms.piece(rows), failure, ended), self.done)
        self.done += len(rows)
        return taken


class AsyncItemsSource(ItemsSource):
    """Any asynchronous iterable of items; arguments are those of `ItemsSource`."""

    def __init__(self, source: Any, forms: Forms, start: int, hold: float | None = None) -> None:
        self.iterator = aiter(source)
        self.forms, self.done, self.more = forms, start, _more(source, hold)

    async def take(self, most: int) -> Taken:  # type: ignore[override]
        """As `ItemsSource.take`."""
        rows: list[Row] = []
        began = 0.0
        try:
            async for item in self.iterator:
                rows.append(numbered(self.forms, item, self.done + len(rows) + 1))
                began = began or time.monotonic()
                if len(rows) >= most or not self.more(began):
                    return self._taken(rows)
        except BaseException as error:
            return self._taken(rows, error)
        return self._taken(rows, ended=True)


def _more(source: Any, hold: float | None) -> Callable[[float], bool]:
    """Whether to take another item, at a time after the first one was taken."""
    ready: Callable[[], bool] | None = getattr(source, "ready", None)
    if ready is not None:
        return lambda began: ready()
    return lambda began: hold is None or time.monotonic() - began < hold


def numbered(forms: Forms, item: Any, number: int) -> Row:
    """The arrays of an item; what is wrong with it is said with its number."""
    try:
        return forms.row(item)
    except ItemError as error:
        raise ItemError(f"Item {number}: {error}") from None
    except (TypeError, ValueError) as error:
        raise ItemError(f"Item {number}: {error}") from error


class Awaited:
    """An asynchronous iterable as a plain one, by an event loop of its own."""

    def __init__(self, source: Any) -> None:
        self.iterator: AsyncIterator[Any] = aiter(source)
        self.runner = asyncio.Runner()
        if hasattr(source, "ready"):
            self.ready = source.ready

    def __iter__(self) -> Iterator[Any]:
        end = object()

        async def one() -> Any:
            return await anext(self.iterator, end)

        while (item := self.runner.run(one())) is not end:
            yield item

    def close(self) -> None:
        """Ends the event loop."""
        self.runner.close()


def is_arrays(source: Any) -> bool:
    """Whether a source is a pair of arrays with time first."""
    kinds = np.ndarray | jax.Array
    return isinstance(source, tuple) and len(source) == 2 and all(isinstance(part, kinds) for part in source)
