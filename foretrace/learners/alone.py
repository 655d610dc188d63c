"""One thread at a time on a model: its states hold tracers while it is traced, and no other thread may meet them.

There is a lock for each model, shared by all of its learners. Whoever traces the model, or reads its states to write
them back, holds it; the thread that has it may take it again. brainstate's own transformations do not know of it: a
jitted function around a learner is called by one thread at a time.
"""

import threading
import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

_locks: dict[int, Any] = {}
_making = threading.Lock()
Method = TypeVar("Method", bound=Callable[..., Any])


def lock_of(model: Any) -> Any:
    """The lock of a model, to be used by `with`."""
    with _making:
        if id(model) not in _locks:
            _locks[id(model)] = threading.RLock()
            weakref.finalize(model, _locks.pop, id(model), None)
        return _locks[id(model)]


def alone(method: Method) -> Method:
    """A method of a learner that holds the lock of its model."""

    @wraps(method)
    def locked(self: Any, *args: Any, **kwargs: Any) -> Any:
        with lock_of(self.model):
            return method(self, *args, **kwargs)

    return cast(Method, locked)
