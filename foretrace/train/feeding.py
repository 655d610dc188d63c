"""Batches that come from outside of the compiled iteration: one at a time, with a look at whether another follows."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any


def is_fed(task: Any) -> bool:
    """Whether a task hands out its batches itself, by `feed`; else an iteration draws them from a key, without end."""
    return callable(getattr(task, "feed", None))


class Feed:
    """The batches of a run.

    Args:
        begin: Begins with the first batch that the run needs; None where batches are drawn inside of an iteration.
    """

    def __init__(self, begin: Callable[[], Iterator[Any]] | None) -> None:
        self._begin, self._next = begin, list[Any]()
        self._batches: Iterator[Any] | None = None

    def empty(self) -> bool:
        """Whether no batch follows. The next one is taken from its source for that, and kept."""
        if self._begin is None:
            return False
        if self._batches is None:
            self._batches = self._begin()
        if not self._next:
            self._next = list(islice(self._batches, 1))
        return not self._next

    def take(self) -> Any:
        """The next batch; None where an iteration draws it."""
        return None if self._begin is None or self.empty() else self._next.pop()
