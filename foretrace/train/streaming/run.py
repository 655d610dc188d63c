"""A stream under way: pieces are taken, learned from, looked at and saved now and then, until there is a reason to end.

Signals, and whatever goes wrong in the source, end it in good order: what was taken is learned from, the state is
saved, and the result is handed over. What is computed is looked at a little later than it is begun, so that Python and
XLA work side by side; a loss that is not finite therefore takes the stream back to the last look, when all was well.
"""

import asyncio
import dataclasses
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from signal import SIGINT
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from foretrace.errors import NonFiniteError
from foretrace.train.checkpoint import CheckpointError, CheckpointWarning
from foretrace.train.folder import Folder
from foretrace.train.iteration import fixed
from foretrace.train.note import Note, note_of
from foretrace.train.result import DivergedError, Terminated
from foretrace.train.settings import differences, other_versions
from foretrace.train.signals import Signals
from foretrace.train.streaming.items import Forms, ItemError, Piece, Taken
from foretrace.train.streaming.learning import Learning, StreamState, all_finite, compiled, copied
from foretrace.train.streaming.progress import StreamProgress
from foretrace.train.streaming.result import StreamError, StreamResult, StreamStep
from foretrace.train.streaming.settings import describe, loss_digest
from foretrace.train.streaming.window import History

LOOK_STEPS, LOOK_SECONDS = 2048, 0.5
"""After how many steps, or how much time, what was computed is looked at."""
REASONS = {
    "ended": "the source has ended",
    "limit": "the limit is reached",
    "on_step": "ended by `on_step`",
    "interrupted": "interrupted",
    "failed": "the source failed",
    "not finite": "not finite any more",
}
"""Why a stream stopped, in words."""
OnStep = Callable[[StreamStep], Any]


@dataclass(frozen=True)
class Plan:
    """How a stream is run.

    Attributes:
        piece: Steps that are handed to the compiled function at once, at most.
        limit: Steps in all, those before a resumption included; None for no limit.
        window: Steps in a window.
        checkpoint_every: Seconds between checkpoints.
        resume: Whether to go on with the stream in the folder, if there is one.
        on_step: Called with each step; None for nobody.
        put: Takes parameters and a carry to whoever holds them; None for nobody.
    """

    piece: int
    limit: int | None
    window: int
    checkpoint_every: float
    resume: bool
    on_step: OnStep | None
    put: Callable[[Any, Any], None] | None


class StreamRun:
    """A stream under way.

    Args:
        learning: What stays the same in it.
        forms: The forms of its items, which are known after the first ones.
        state: Its first state.
        plan: How it is run.
        folder: Where it is saved; None for nowhere.
        progress: Where it says how it goes on.
    """

    advance: Any

    def __init__(
        self,
        learning: Learning,
        forms: Forms,
        state: StreamState,
        plan: Plan,
        folder: Folder | None,
        progress: StreamProgress,
    ) -> None:
        self.learning, self.plan, self.folder, self.progress = learning, plan, folder, progress
        self.steps = 0
        self._begin_from(state)
        self.forms, self.advance = forms, None
        self.history = History.of(learning.names, plan.window, np.dtype(jnp.result_type(float)))
        self.signals, self.settings = Signals(), dict[str, Any]()
        self._broken_off = self.signals.breaking()
        self.loss: str | None = None
        self.began, self.started = 0, time.monotonic()
        self._unseen: list[tuple[Piece, Any]] = []
        self._looked = self._saved_at = time.monotonic()
        self._saved_steps = -1

    @property
    def state(self) -> StreamState:
        """All that changes, after the steps that were begun."""
        state: StreamState = jax.tree.unflatten(self._tree, self._leaves)
        return state

    def _begin_from(self, state: StreamState) -> None:
        """Goes on from a state to which the stream can be taken back: the next pieces do not write over it."""
        self._good, (leaves, self._tree) = state, jax.tree.flatten(state)
        self._leaves = leaves if self.learning.shown else copied(leaves)

    def _back(self) -> None:
        """Takes the stream back to the last look."""
        self._leaves, self.steps = jax.tree.leaves(self._good), self.history.steps

    def go(self, open_source: Callable[[int], Any]) -> StreamResult:
        """The whole stream, of a source that is opened at a number of steps."""
        with self.signals.watched(), self._opened():
            source = open_source(self.steps)
            reason, failure = None, None
            while reason is None:
                taken = self._wait(source)
                reason, failure = self._take(taken)
            return self._finish(reason, failure)

    async def go_async(self, open_source: Callable[[int], Any]) -> StreamResult:
        """As `go`, for a source of `AsyncItemsSource`."""
        with self.signals.watched(), self._opened():
            source = open_source(self.steps)
            reason, failure = None, None
            while reason is None:
                taken = await self._wait_async(source)
                reason, failure = self._take(taken)
                await asyncio.sleep(0)
            return self._finish(reason, failure)

    def _wait(self, source: Any) -> Taken:
        try:
            with self._broken_off:
                taken: Taken = source.take(self._most())
                return taken
        except KeyboardInterrupt as error:
            return Taken(None, error)

    async def _wait_async(self, source: Any) -> Taken:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def cancel() -> None:
            loop.call_soon_threadsafe(task.cancel)

        try:
            with self.signals.breaking(cancel):
                taken: Taken = await source.take(self._most())
        except KeyboardInterrupt as error:
            return Taken(None, error)
        if isinstance(taken.failure, asyncio.CancelledError) and self.signals.arrived is not None:
            task.uncancel()
            return taken._replace(failure=KeyboardInterrupt())
        return taken

    def _most(self) -> int:
        """Steps that may be taken at once."""
        plan = self.plan
        return plan.piece if plan.limit is None else max(1, min(plan.piece, plan.limit - self.steps))

    def _take(self, taken: Taken) -> tuple[str | None, BaseException | None]:
        """Learns from what was taken; why the stream ends with it, and the error that ends it."""
        try:
            stopped = taken.piece is not None and self._learn(taken.piece)
            limited = self.plan.limit is not None and self.steps >= self.plan.limit
            if taken.failure is not None or taken.ended or stopped or limited:
                stopped = self._look() or stopped
            elif self.folder is not None and time.monotonic() - self._saved_at >= self.plan.checkpoint_every:
                self._save()
            else:
                return None, None
        except NonFiniteError as error:
            return "not finite", error
        if isinstance(taken.failure, KeyboardInterrupt):
            return "interrupted", None
        if taken.failure is not None:
            return "failed", taken.failure
        return "on_step" if stopped else "ended" if taken.ended else "limit" if limited else None, None

    def _learn(self, piece: Piece) -> bool:
        """Begins to compute a piece, and looks at what is due; whether `on_step` ends the stream."""
        known = self.learning
        if self.advance is None or known.y is not self.forms.y or known.external is not self.forms.external:
            self._compile()
        since = None if known.every == 1 else np.int32(self.steps % known.every)
        if self.plan.piece == 1:
            arrays, length = piece[:4], None
        else:
            arrays, length = _padded(piece, self.plan.piece), np.int32(piece.length)
        self._leaves, seen = self.advance(self._leaves, arrays, length, since)
        self._unseen.append((piece, seen))
        self.steps += piece.length
        due = known.shown or self.steps - self.history.steps >= LOOK_STEPS
        return self._look() if due or time.monotonic() - self._looked >= LOOK_SECONDS else False

    def _compile(self) -> None:
        """Takes the function for what is known of the items."""
        self.learning = dataclasses.replace(self.learning, y=self.forms.y, external=self.forms.external)
        self.advance = compiled(self.learning, self._tree)
        if self.learning.y is not None and self.loss is None:
            self._compare_loss()

    def _look(self) -> bool:
        """Takes in what was computed; whether `on_step` ends the stream.

        Raises:
            NonFiniteError: A loss or a parameter is not finite; the state is that of the last look.
        """
        unseen, self._unseen = self._unseen, []
        shown = self.plan.on_step is not None
        try:
            finite = bool(all_finite(self.state.params)) if unseen else True
            found = [jax.tree.map(np.asarray, seen) if shown else seen for _, seen in unseen]
            measured = [np.asarray(seen.measured) for seen in found]
        except jax.errors.JaxRuntimeError as error:  # what `check_finite` of a learner finds
            raise self._taken_back(str(error).partition(f"{NonFiniteError.__name__}: ")[2] or str(error)) from error
        pieces = [piece for piece, _ in unseen]
        if pieces:
            parts = [own[: piece.length] for piece, own in zip(pieces, measured, strict=True)]
            rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
            if not (finite and np.isfinite(rows[:, 0]).all()):
                self._require_finite(pieces, parts, finite)
            self.history.add(rows)
            self._begin_from(self.state)
        self._looked = time.monotonic()
        self.progress.update(self.steps, self.history.points[-1] if self.history.points else {})
        if not shown:
            return False
        told = [self._tell(piece, seen) for piece, seen in zip(pieces, found, strict=True)]
        return any(told)

    def _require_finite(self, pieces: Sequence[Piece], rows: Sequence[np.ndarray], params: bool) -> None:
        """Raises `NonFiniteError` if a loss, or a parameter after all of these pieces, is not finite."""
        first = self.history.steps + 1
        for piece, own in zip(pieces, rows, strict=True):
            bad = ~np.isfinite(own[:, 0])
            if piece.y is not None and bad.any():
                bad &= True if piece.labelled is None else piece.labelled
                if bad.any():
                    raise self._taken_back(f"The loss of step {first + int(np.argmax(bad)):,} is not finite")
            first += piece.length
        if not params:
            raise self._taken_back("A parameter is not finite")

    def _taken_back(self, what: str) -> NonFiniteError:
        self._back()
        return NonFiniteError(
            f"{what.rstrip('. ')}. Lower the learning rate or clip gradients; a learner compiled with "
            f"`check_finite=True` says where a NaN first appears. The stream is as it was after {self.steps:,} steps."
        )

    def _tell(self, piece: Piece, seen: Any) -> bool:
        """Calls `on_step` for each step of a piece that was just taken in; whether it ends the stream."""
        on_step, form, first = self.plan.on_step, self.learning.y, self.history.steps - piece.length + 1
        assert on_step is not None
        stop = False
        for k, row in enumerate(seen.measured[: piece.length].tolist()):
            prediction, fired = jax.tree.map(lambda a, k=k: a[k], (seen.prediction, seen.spikes))
            if piece.y is None or form is None or not (piece.labelled is None or piece.labelled[k]):
                step = StreamStep(first + k, prediction, None, None, {}, fired)
            else:
                target = jax.tree.unflatten(form.tree, [array[k] for array in piece.y])
                metrics = dict(zip(self.learning.names[1:], row[1:], strict=True))
                step = StreamStep(first + k, prediction, target, row[0], metrics, fired)
            stop = bool(on_step(step)) or stop
        return stop

    def _finish(self, reason: str, failure: BaseException | None) -> StreamResult:
        """Saves, hands over, and returns or raises."""
        self._save()
        if self.plan.put is not None:
            self.plan.put(self.state.params, self.state.carry)
        path, arrived = None if self.folder is None else self.folder.path, self.signals.arrived
        signal = "" if arrived in (None, SIGINT) else f" by {arrived.name}"
        kept = "" if path is None else f"; saved in `{path}`"
        self.progress.close(f"{self.steps:,} steps: {REASONS[reason]}{signal}{kept}")
        result = StreamResult(
            params=self.state.params,
            steps=self.steps,
            labelled=self.history.labelled,
            metrics=self.history.window.means(),
            totals=self.history.means(),
            history=self.history.points,
            state=self.state,
            stopped_because=reason,
            seconds=time.monotonic() - self.started,
            window=self.plan.window,
            folder=path,
            label=self.learning.learner.rule.name,
            _began=self.began,
        )
        where = "" if path is None else f" The stream until then is in `{path}`."
        if reason == "not finite":
            raise DivergedError(f"{failure}{where}", result) from failure
        if failure is not None:
            if not isinstance(failure, Exception):  # a cancelled task, a program that ends
                raise failure
            words = str(failure) if isinstance(failure, ItemError) else f"{type(failure).__name__}: {failure}"
            raise StreamError(f"The stream ended after {self.steps:,} steps. {words}{where}", result) from failure
        if arrived not in (None, SIGINT):
            raise Terminated(arrived, result)
        return result

    @contextmanager
    def _opened(self) -> Iterator[None]:
        """Begins the stream in the folder or goes on with it; whatever goes wrong within the block, it is saved."""
        if self.folder is None:
            if self.plan.resume:
                raise ValueError("`resume=True` goes on with the stream in a folder: say which with `folder=`.")
            yield
            return
        with self.folder.opened():
            if self.folder.checkpoints and not self.plan.resume:
                raise FileExistsError(
                    f"`{self.folder.path}` holds a run. Go on with it by `resume=True`, or name another folder."
                )
            self.folder.refuse_remains()
            self.settings = describe(self.learning, self.state, self.plan.window)
            self._restore(self.folder)
            self._save()
            try:
                yield
            except (DivergedError, StreamError, Terminated):
                raise  # it is saved already
            except BaseException:  # such as an error of `on_step`
                with suppress(OSError, NonFiniteError):
                    self._back()
                    self._save()
                raise

    def _restore(self, folder: Folder) -> None:
        found = folder.latest()
        if found is None:
            return
        note = note_of(found)
        others = differences(note.settings, self.settings)
        if others:
            raise CheckpointError(
                f"The run in `{folder.path}` was made with {', '.join(others)}. "
                "Give the settings of that run, or name another folder."
            )
        said = other_versions(note.settings, self.settings)
        if said:
            warnings.warn(
                f"The stream in `{folder.path}` was made with {said}: see to it that network, loss and optimizer are "
                "those of that run.",
                CheckpointWarning,
                stacklevel=2,
            )
        values = found.fill(self._values())
        about = found.note.get("stream")
        if not isinstance(about, dict):
            raise CheckpointError(f"The checkpoint in `{folder.path}` is none of a stream. Name another folder.")
        self._begin_from(StreamState(**jax.tree.map(fixed, values["state"])))
        self.steps = self.began = note.lines
        self.loss_before = None if said else about["loss"]
        self.history.restore(about, values["window"], note.lines)
        folder.set_aside_after(note.lines)
        self._saved_steps = note.lines
        self.progress.say(f"going on after {note.lines:,} steps")

    loss_before: str | None = None

    def _compare_loss(self) -> None:
        """Refuses to go on with another loss than the one that a resumed stream was learned by."""
        self.loss = loss_digest(self.learning, self.state) if self.folder is not None else ""
        if self.loss_before is not None and self.loss != self.loss_before:
            raise CheckpointError(
                f"The stream in `{self.folder and self.folder.path}` was learned by another loss, other metrics or "
                "targets of another form. Give those of that run, or name another folder."
            )

    def _values(self) -> dict[str, Any]:
        return {"state": self.state._asdict(), "window": self.history.window.rows}

    def _save(self) -> None:
        """Writes a checkpoint of what was looked at."""
        if self.folder is None:
            return
        self._look()
        self._saved_at = time.monotonic()
        if self.steps == self._saved_steps:
            return
        loss = self.loss or self.loss_before
        note = Note(self.settings, self.steps).plain() | {"stream": {**self.history.plain(), "loss": loss}}
        self.folder.save(self.steps, self._values(), note)
        self._saved_steps = self.steps


def _padded(piece: Piece, room: int) -> tuple[Any, ...]:
    """The arrays of a piece, as long as the program's; what is behind its length is not read."""
    if piece.length == room:
        return piece[:4]
    pad = lambda a: np.concatenate([a, np.zeros((room - len(a), *a.shape[1:]), a.dtype)])
    return piece.each(pad, room)[:4]
