"""Several processes that train one network: the first one reads and writes files, and all do the same in step.

Whatever a process decides by itself, all others must decide too, or they wait for one another without end. So what the
first one reads is told to all, and a signal to end that one of them got counts when all know of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from signal import Signals
from typing import Any, TypeVar

import jax
import numpy as np

from foretrace._jax import from_first_process, from_processes

Value = TypeVar("Value")
_READ, _FAILED = b"+", b"-"


class FirstProcessError(RuntimeError):
    """The first of several processes could not go on; it says itself why."""


@dataclass(frozen=True)
class Processes:
    """The processes of a run, as one of them sees them.

    Attributes:
        count: How many there are.
        index: Which one this is.
    """

    count: int = 1
    index: int = 0

    @property
    def leads(self) -> bool:
        """Whether this one writes files and progress."""
        return self.index == 0

    @property
    def several(self) -> bool:
        """Whether there are others."""
        return self.count > 1

    def told(
        self, read: Callable[[], Value], encode: Callable[[Value], bytes], decode: Callable[[bytes], Value]
    ) -> Value:
        """What the first process reads, in every process.

        Args:
            read: Called in the first process alone.
            encode: From what it gives to bytes, for the others.
            decode: The way back.

        Raises:
            FirstProcessError: The first process got an error, which it raises itself.
        """
        if not self.several:
            return read()
        if not self.leads:
            got = from_first_process(b"")
            if got[:1] == _FAILED:
                raise FirstProcessError(f"The first process ended with {got[1:].decode()}")
            return decode(got[1:])
        try:
            value = read()
            sent = _READ + encode(value)
        except Exception as error:
            from_first_process(_FAILED + f"{type(error).__name__}: {error}".encode())
            raise
        from_first_process(sent)
        return value

    def agreed(self, arrived: Signals | None) -> Signals | None:
        """The signal that any of the processes got, the same in all of them; None where none did."""
        if not self.several:
            return arrived
        greatest = int(np.max(from_processes(np.asarray(arrived or 0))))
        return Signals(greatest) if greatest else None

    def where(self, condition: bool) -> list[int]:
        """The numbers of the processes in which a condition holds, the same in all of them."""
        held = from_processes(np.asarray(condition)) if self.several else [condition]
        return [number for number, found in enumerate(held) if found]


def processes_of(mesh: Any) -> Processes:
    """The processes that a mesh is spread over; one without a mesh, or where all of its devices are of one."""
    found = set() if mesh is None else {device.process_index for device in mesh.devices.flat}
    return Processes(len(found), jax.process_index()) if len(found) > 1 else Processes()
