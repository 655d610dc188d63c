"""Where the lines of a stream come from: the standard input, a file, or a TCP port, read in a thread of its own.

What was read waits in a queue of bounded length, so that a source which is faster than the network is slowed down by
its pipe and fills no memory. `ready` tells whether an item is there already: what has arrived while the network was
busy is then learned from in one piece.
"""

import contextlib
import os
import queue
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np

from foretrace.cli.arguments import CommandError
from foretrace.cli.lines import LineError, Lines

WAITING = 1024
"""Items that wait to be learned from, at most."""
LONGEST = 1 << 20
"""Bytes of a line, at most."""
Item = tuple[np.ndarray, np.ndarray | None]
_END = object()


class Feed:
    """The items of a stream, as they arrive.

    Args:
        opened: Opens one file of bytes after another.
        lines: Reads their lines.
        complain: Is told of a bad line: its number, and what is wrong with it.
        stops: Whether a bad line ends the stream.
    """

    def __init__(
        self, opened: Iterator[BinaryIO], lines: Lines, complain: Callable[[int, str], None], stops: bool
    ) -> None:
        self.opened, self.lines, self.complain, self.stops = opened, lines, complain, stops
        self.waiting: queue.Queue[Any] = queue.Queue(WAITING)
        self.bad = 0
        self._first: list[Item] = []
        self._thread = threading.Thread(target=self._read, name="foretrace stream", daemon=True)

    def start(self) -> "Feed":
        """Begins to read."""
        self._thread.start()
        return self

    def first(self) -> Item | None:
        """The first item, which stays to be learned from; None where there is none."""
        item = next(iter(self), None)
        self._first = [] if item is None else [item]
        return item

    def __iter__(self) -> Iterator[Item]:
        while True:
            found = self._first.pop() if self._first else self.waiting.get()
            if found is _END:
                self.waiting.put(_END)  # for whoever asks again
                return
            if isinstance(found, BaseException):
                raise found
            yield found

    def ready(self) -> bool:
        """Whether an item can be had without waiting."""
        return bool(self._first) or not self.waiting.empty()

    def _read(self) -> None:
        try:
            for file in self.opened:
                self.lines.begin()
                with file, contextlib.suppress(ConnectionError):
                    self._read_lines(file)
            self.waiting.put(_END)
        except BaseException as error:  # it is raised where the items are taken
            self.waiting.put(error)

    def _read_lines(self, file: BinaryIO) -> None:
        number = 0
        while line := file.readline(LONGEST):
            number += 1
            try:
                if len(line) == LONGEST and not line.endswith(b"\n"):
                    _skip_line(file)
                    raise LineError(f"longer than {LONGEST:,} bytes")
                item = self.lines.item(line)
            except LineError as error:
                self.bad += 1
                if self.stops:
                    raise CommandError(f"Line {number}: {error}") from None
                self.complain(number, str(error))
                continue
            if item is not None:
                self.waiting.put(item)


def _skip_line(file: BinaryIO) -> None:
    while (rest := file.readline(LONGEST)) and not rest.endswith(b"\n"):
        pass


def standard_input() -> Iterator[BinaryIO]:
    """The standard input, by a file of its own: Python's is locked by the thread that reads it when a program ends."""
    try:
        yield open(os.dup(sys.stdin.fileno()), "rb")  # noqa: SIM115
    except (OSError, ValueError, AttributeError):  # a stream of Python's that has no file behind it
        yield sys.stdin.buffer


def one_file(path: str) -> Iterator[BinaryIO]:
    """A file by its name."""
    yield open(path, "rb")  # noqa: SIM115


def listening(host: str, port: int) -> socket.socket:
    """A socket that waits for whoever sends lines.

    Raises:
        CommandError: The port is taken, or there is no such address.
    """
    try:
        return socket.create_server((host, port))
    except (OSError, OverflowError) as error:
        raise CommandError(f"Cannot listen at {host}:{port}: {error}. Name another --port.") from error


def connections(server: socket.socket, once: bool) -> Iterator[BinaryIO]:
    """What is sent by one client after another; the first one alone where that is asked for."""
    while True:
        connection, _ = server.accept()
        with connection:
            yield connection.makefile("rb")
        if once:
            return
