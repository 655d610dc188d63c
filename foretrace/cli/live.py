"""A page that shows a stream while it runs: a small server of this machine alone, and what it has to show.

The server listens on the loopback address and answers two questions: `/` is the page, `/events` a stream of
server-sent events, each of them a snapshot. Whoever asks under another name than this machine's own is refused, so that
a page of elsewhere cannot read it. Memory stays flat: a snapshot has the last steps, and a history of bounded length.
"""

import collections
import contextlib
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from foretrace.cli.arguments import CommandError
from foretrace.cli.live_page import POLICY, live_page
from foretrace.train.folder import finite
from foretrace.train.streaming.window import History

LOOPBACK = "127.0.0.1"
RECENT, RASTER, MOST_NEURONS, MOST_POINTS = 200, 120, 64, 300
SECONDS = 0.5
"""Between two events."""


class Board:
    """What there is to show of a stream; written by one thread and read by others.

    Args:
        title: What is learned, in a line.
        window: Steps that the loss is a mean of.
    """

    def __init__(self, title: str, window: int) -> None:
        self.title, self.window, self.state = title, window, "waiting for the first line"
        self.history = History.of(["loss"], window)
        self.recent: collections.deque[tuple[int, Any, Any]] = collections.deque(maxlen=RECENT)
        self.activity: collections.deque[Any] = collections.deque(maxlen=RASTER)
        self.steps, self.first = 0, 0
        self._rows: list[float] = []
        self._rate: collections.deque[tuple[float, int]] = collections.deque(maxlen=20)
        self._lock = threading.Lock()

    def see(self, step: Any) -> None:
        """Takes a step in."""
        with self._lock:
            if not self.steps:
                self.state, self.first = "learning", step.number
            self.steps = step.number
            self.recent.append((step.number, step.prediction, step.target))
            self._rows.append(np.nan if step.loss is None else step.loss)
            if step.spikes is not None:
                self.activity.append(step.spikes)
            if len(self._rows) >= 256:
                self._take_rows()

    def end(self, state: str) -> None:
        """Says that the stream has ended."""
        with self._lock:
            self.state = state

    def snapshot(self) -> dict[str, Any]:
        """What is shown now, as plain values."""
        with self._lock:
            self._take_rows()
            points = self.history.points[:: max(1, len(self.history.points) // MOST_POINTS)]
            recent, activity = list(self.recent), list(self.activity)
            self._rate.append((time.monotonic(), self.steps))
            then, before = self._rate[0]
            now, steps = self._rate[-1]
            found = {
                "title": self.title,
                "state": self.state,
                "steps": self.steps,
                "rate": (steps - before) / (now - then) if now > then else None,
                "loss": self.history.window.means()["loss"],
                "window": self.window,
                "memory": resident_bytes(),
                "curve": [[self.first - 1 + point["step"], point["loss"]] for point in points],
            }
        found["recent"] = [[number, _first(prediction), _first(target)] for number, prediction, target in recent]
        found["activity"] = [_neurons(values) for values in activity]
        return dict(finite(found))

    def _take_rows(self) -> None:
        if self._rows:
            self.history.add(np.array(self._rows)[:, None])
            self._rows = []


def _first(value: Any) -> float | None:
    """The first number of a prediction or a target."""
    flat = [] if value is None else np.ravel(value).tolist()
    return float(flat[0]) if flat else None


def _neurons(values: Any) -> list[float]:
    import jax

    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(values)])
    return [round(float(value), 3) for value in flat[:MOST_NEURONS]]


def resident_bytes() -> int | None:
    """The memory of this process that is in use; None where the system does not tell."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/statm") as file:
        import resource

        return int(file.read().split()[1]) * resource.getpagesize()
    with contextlib.suppress(ImportError):
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return int(most if sys.platform == "darwin" else most * 1024)
    return None


class LivePage:
    """The server of a page.

    Args:
        board: What is shown.
        port: Where to listen, on the loopback address; 0 for any port that is free.

    Raises:
        CommandError: The port is taken.
    """

    def __init__(self, board: Board, port: int) -> None:
        self.board, self.ended = board, threading.Event()
        try:
            self.server = ThreadingHTTPServer((LOOPBACK, port), _handler(self))
        except (OSError, OverflowError) as error:
            raise CommandError(f"Cannot show a page at port {port}: {error}. Name another with --page.") from error
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, name="foretrace page", daemon=True).start()

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{LOOPBACK}:{self.server.server_address[1]}/"

    def close(self) -> None:
        """Sends the last snapshot to all who look, and ends."""
        self.ended.set()
        time.sleep(0.05)
        self.server.shutdown()
        self.server.server_close()


def _handler(page: LivePage) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers a request."""

        def do_GET(self) -> None:
            own = {f"{name}:{page.server.server_address[1]}" for name in (LOOPBACK, "localhost")}
            if self.headers.get("Host") not in own:
                self.send_error(403, "This page is for this machine alone")
            elif self.path == "/":
                self._answer("text/html; charset=utf-8", live_page(page.board.snapshot()).encode())
            elif self.path == "/events":
                with contextlib.suppress(OSError):  # whoever looked has left
                    self._events()
            else:
                self.send_error(404, "There is / and /events")

        def _answer(self, kind: str, body: bytes) -> None:
            self._begin(kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _begin(self, kind: str) -> None:
            self.send_response(200)
            for name, value in (
                ("Content-Type", kind),
                ("Cache-Control", "no-store"),
                ("Content-Security-Policy", POLICY),
            ):
                self.send_header(name, value)
            self.send_header("X-Content-Type-Options", "nosniff")

        def _events(self) -> None:
            self._begin("text/event-stream")
            self.end_headers()
            last = False
            while not last:
                last = page.ended.wait(SECONDS)
                self.wfile.write(f"data: {json.dumps(page.board.snapshot())}\n\n".encode())
                self.wfile.flush()

        def log_message(self, format: str, *arguments: Any) -> None:
            """Nothing: the standard error stream is for the stream's own words."""

    return Handler
