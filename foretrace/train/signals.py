"""What tells a process to end: Ctrl-C, SIGTERM (of `kill`, SLURM, Docker, systemd) and SIGHUP (a lost terminal).

By themselves the latter two end a process on the spot. While a run is under way they are noted instead, and the run
ends in good order. What is being computed is broken off, since it can be computed again; what is being written is not.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

WATCHED = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Signals:
    """Takes note of signals.

    Attributes:
        arrived: The first signal that has arrived; None while none has.
    """

    def __init__(self) -> None:
        self.arrived: signal.Signals | None = None
        self._breaking = False
        self._by: Callable[[], None] | None = None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Within the block, signals are noted. Those that the program ignores or handles by itself are left to it.

        Python hands signals to the main thread; in any other one this does nothing.
        """
        before: dict[signal.Signals, Any] = {}
        try:
            if threading.current_thread() is threading.main_thread():
                for number in filter(_is_free, WATCHED):
                    before[number] = signal.signal(number, self._take)
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def breaking(self, by: Callable[[], None] | None = None) -> "_Breaking":
        """Within the block, a signal is a `KeyboardInterrupt`, as is one that arrived before.

        Args:
            by: Called where a signal arrives, in the place of the `KeyboardInterrupt`.
        """
        return _Breaking(self, by)

    def _take(self, number: int, _: FrameType | None) -> None:
        self.arrived = self.arrived or signal.Signals(number)
        if self._breaking:
            self._breaking = False  # once: whoever catches it is not to be broken off again
            if self._by is None:
                raise KeyboardInterrupt
            self._by()


class _Breaking:
    """The block of `Signals.breaking`; a class, since a stream enters it at every step."""

    def __init__(self, signals: Signals, by: Callable[[], None] | None) -> None:
        self.signals, self.by = signals, by

    def __enter__(self) -> None:
        signals = self.signals
        signals._breaking, signals._by = True, self.by
        if signals.arrived is not None:
            signals._breaking = False
            raise KeyboardInterrupt

    def __exit__(self, *_: object) -> None:
        self.signals._breaking = False


def _is_free(number: signal.Signals) -> bool:
    """Whether nobody but another run has taken a signal."""
    handler = signal.getsignal(number)
    return handler in (signal.SIG_DFL, signal.default_int_handler) or isinstance(
        getattr(handler, "__self__", None), Signals
    )


@contextmanager
def ctrl_c_heard() -> Iterator[None]:
    """Within the block, SIGINT is a `KeyboardInterrupt` even where it was ignored.

    A shell lets whatever a script begins in the background ignore it, and then nobody could stop a run by it.
    """
    here = threading.current_thread() is threading.main_thread()
    ignored = here and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
