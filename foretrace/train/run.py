"""A run under way: iterations, validations and checkpoints, until there is a reason to stop; killed, it can go on.

The loop itself does little: it calls the one compiled function of `foretrace.train.iteration`, notes the metrics,
validates now and then, and writes checkpoints. A checkpoint holds the whole `TrainState` and the best network so far,
so a run that goes on from one ends with exactly the weights of a run that was never stopped. An iteration counts when
all of it is done, its validation included; what a signal, a NaN or an error breaks off is as if it had not begun.

On many devices the state is whole until the run is opened, and is shared out then. Of several processes the first one
has the folder; all of them read from it what the first one tells, and stop after the same iteration.
"""

import dataclasses
import json
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from functools import partial
from signal import SIGINT
from signal import Signals as Signal
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from foretrace.errors import NonFiniteError
from foretrace.train.best import Best
from foretrace.train.checkpoint import Checkpoint, CheckpointError, CheckpointWarning, decode, encode, name_of
from foretrace.train.feeding import Feed, is_fed
from foretrace.train.folder import Folder, MetricsFile, Record
from foretrace.train.iteration import Training, TrainState, fixed
from foretrace.train.note import Note, note_of
from foretrace.train.placement import gathered, placed
from foretrace.train.processes import processes_of
from foretrace.train.progress import VALIDATION, Progress
from foretrace.train.result import DivergedError, Result, Terminated, validation_of
from foretrace.train.settings import (
    START,
    Numbers,
    describe,
    differences,
    first_numbers,
    other_versions,
    unlike,
)
from foretrace.train.signals import Signals
from foretrace.train.stopping import REASONS, Stopping


class Run:
    """A run under way.

    Args:
        training: What stays the same in it.
        state: Its first state.
        stopping: When it stops.
        named: Further settings that it must have in common with a run that it goes on with.
        folder: Where it is saved; None for nowhere.
        progress: Where it says how it goes on.
    """

    def __init__(
        self,
        training: Training,
        state: TrainState,
        stopping: Stopping,
        named: dict[str, Any],
        folder: Folder | None,
        progress: Progress,
    ) -> None:
        self.training, self.stopping, self.named = training, stopping, named
        self.folder, self.progress = folder, progress
        self.settings: dict[str, Any] = {}
        self.first: Numbers | None = None
        self.signals = Signals()
        self.state, self.records = state, list[Record]()
        self.best: Best | None = None
        self.metrics: MetricsFile | None = None
        self.iterate, self.evaluate = jax.jit(partial(_iterate, training)), jax.jit(training.evaluate)
        self.processes = processes_of(None if training.placement is None else training.placement.mesh)
        self._places: Any = None
        self._agreed: Signal | None = None
        self._best_saved: Best | None = None

    @property
    def arrived(self) -> Signal | None:
        """The signal that the run is to end by; of several processes, the one that all of them know of."""
        return self._agreed if self.processes.several else self.signals.arrived

    def go(self, iterations: int, resume: bool, validate_every: int | None, checkpoint_every: int) -> Result:
        """The whole run.

        Args:
            iterations: Iterations in all.
            resume: Whether to go on with the run in the folder, if there is one.
            validate_every: Iterations between validations.
            checkpoint_every: Iterations between checkpoints.
        """
        if self.folder is None and not self.processes.several:  # nothing to save: a process may end at once
            result, failure = self._go(iterations, resume, validate_every, checkpoint_every)
        else:
            with self.signals.watched():
                result, failure = self._go(iterations, resume, validate_every, checkpoint_every)
        if failure is not None:
            kept = "" if result.folder is None else f" The run until then is in `{result.folder}`."
            raise DivergedError(f"{failure}{kept}", result) from failure
        if self.arrived not in (None, SIGINT):
            raise Terminated(self.arrived, result)
        return result

    def _go(self, iterations: int, resume: bool, validate_every: int | None, checkpoint_every: int) -> Any:
        """The run, and the error that ended it, if one did."""
        failure = None
        with self._opened(resume):
            try:
                reason = self._loop(iterations, validate_every, checkpoint_every)
            except KeyboardInterrupt:
                reason = "interrupted"
            except NonFiniteError as error:
                reason, failure = "not finite", error
            except BaseException:
                if not self.processes.several:  # others may know of no error, and would be waited for
                    with suppress(OSError):  # a full disk, for instance, may be what the error is about
                        self._end()
                raise
            if reason in ("interrupted", "not finite"):
                self._end()
        params, persistent, carry = self._kept((self.state.params, self.state.persistent, self.state.carry))
        self.training.trainable.finish(params, persistent, carry)
        path, done = None if self.folder is None else self.folder.path, int(self.state.iteration)
        arrived = self.arrived
        by_signal = "" if arrived in (None, SIGINT) else f" by {arrived.name}; it is saved in `{path}`"
        self.progress.close(f"{done} iterations: {REASONS[reason]}{by_signal}")
        result = Result(params, self.records, self.state, reason, path, self.best, self.progress.label)
        return result, failure

    def _end(self) -> None:
        """Saves what was done before an iteration was broken off."""
        done = int(self.state.iteration)
        self.records = [record for record in self.records if record["iteration"] <= done]
        self._save()

    def _loop(self, iterations: int, validate_every: int | None, checkpoint_every: int) -> str:
        done = int(self.state.iteration)
        last = self.records[-1] if self.records and self.records[-1]["iteration"] == done else {}
        reason = self.stopping.reason(validation_of(last))
        feed = self._feed(done)
        if reason is None:
            self.progress.wait(done, "compiling")
            reason = "data" if done < iterations and feed.empty() else None
        while reason is None and done < iterations:
            began, done = time.perf_counter(), done + 1
            with nullcontext() if self.processes.several else self.signals.breaking():
                state, record = self._next(done, feed.take())
                ended = done < iterations and feed.empty()
                if validate_every is not None and (done % validate_every == 0 or done == iterations or ended):
                    record |= self._validated(state)
            record["seconds"] = round(time.perf_counter() - began, 4)
            self._take(state, record)
            self.progress.update(record)
            if self.processes.several and self._told_to_end():
                break
            reason = self.stopping.reason(validation_of(record)) or ("data" if ended else None)
            if done % checkpoint_every == 0 or done >= iterations or reason is not None:
                self._save()
        return "interrupted" if self._told_to_end() else reason or "iterations"

    def _told_to_end(self) -> bool:
        """Whether a signal has arrived, in this process or in another one; all of them ask at the same place."""
        self._agreed = self._agreed or self.processes.agreed(self.signals.arrived)
        return self._agreed is not None

    def _feed(self, done: int) -> Feed:
        """The batches from the next iteration on."""
        task, size = self.training.task, self.training.batch_size
        return Feed((lambda: task.feed(size, skip=done)) if is_fed(task) else None)

    def _next(self, done: int, trial: Any) -> tuple[TrainState, Record]:
        """The state after one more iteration, on a batch of trials if there is one, and its metrics."""
        given = [] if trial is None else [self._placed_trial(trial)]
        with _callbacks_told(done):
            state, found, finite = self.iterate(self.state, *given)
            record = {"iteration": done, **_plain(found)}
        _require_finite(record, state.params, finite)
        return state, record

    def _validated(self, state: TrainState) -> Record:
        batches, counts = [], []
        for trial in self.training.task.test_trials(self.training.batch_size):
            batches.append(_plain(self.evaluate(state.params, state.persistent, self._placed_trial(trial))))
            counts.append(float(getattr(trial, "n_trials", self.training.batch_size)))
        if not batches:
            raise ValueError(f"The task `{self.training.task.name}` gave no test trials.")
        mean = {name: float(np.average([b[name] for b in batches], weights=counts)) for name in batches[0]}
        return {f"{VALIDATION}{name}": value for name, value in mean.items()}

    def _take(self, state: TrainState, record: Record) -> None:
        """Counts an iteration as done. The state comes last: what an error finds without it is taken back."""
        if record["iteration"] == 1:
            self.first = first_numbers(record, *self._whole((self.state.params, state.params)))
        self.records.append(record)
        if self.metrics is not None:
            self.metrics.append(record)
        validated = validation_of(record)
        if validated is not None and self.stopping.see(validated):
            self.best = Best(record["iteration"], validated, *self._kept((state.params, state.persistent)))
        self.state = state

    @contextmanager
    def _opened(self, resume: bool) -> Iterator[None]:
        """Begins the run in the folder or goes on with it; within the block no other run can."""
        if self.folder is None:
            if resume:
                raise ValueError("`resume=True` goes on with the run in a folder: say which with `folder=`.")
            self._describe()
            self._place()
            yield
            return
        folder, told = self.folder, self.processes.told
        with ExitStack() as kept:
            found = told(lambda: _opened(folder, resume, kept), _encoded, _decoded)
            self._describe()
            self._place()
            if found is not None:
                self._restore(folder, found, note_of(found))
                self._place()
            done = int(self.state.iteration)
            self.records = told(lambda: folder.cut_metrics(done), lambda lines: json.dumps(lines).encode(), json.loads)
            if self.processes.leads:
                self.metrics = kept.enter_context(closing(folder.open_metrics()))
            if found is None:
                self._save()
            yield

    def _describe(self) -> None:
        """Notes the settings of the run, which know of no devices; those of all processes must be the same."""
        if self.folder is None and not self.processes.several:
            return
        plain, iterate = self.training, self.iterate
        if plain.placement is not None:
            plain = dataclasses.replace(plain, placement=None)
            iterate = jax.jit(partial(_iterate, plain))
        own = self.settings = describe(plain, self.state, iterate, self.named)
        first = self.processes.told(lambda: own, lambda settings: json.dumps(settings).encode(), json.loads)
        others = [*differences(first, own), *filter(None, [other_versions(first, own)])]
        strange = self.processes.where(bool(others))
        if strange:
            said = f", here {', '.join(others)}" if others else ""
            raise ValueError(
                f"Process {strange[0]} was started with other settings or versions than the first one{said}: start all "
                "processes of a run in the same way."
            )

    def _place(self) -> None:
        """Shares the state out over the devices."""
        placement = self.training.placement
        if placement is None:
            return
        if self._places is None:
            self._places = placement.of_state(self.state, self.training.trainable.persistent)
            copies = placement.everywhere
            self.iterate = jax.jit(partial(_iterate, self.training), out_shardings=(self._places, copies, copies))
            self.evaluate = jax.jit(self.training.evaluate, out_shardings=copies)
        self.state = placed(self.state, self._places)

    def _placed_trial(self, trial: Any) -> Any:
        placement = self.training.placement
        return trial if placement is None else placed(trial, placement.of_trial(trial))

    def _whole(self, values: Any) -> Any:
        """Arrays as a whole, in the memory of the host where they were on many devices; all processes must ask."""
        return values if self.training.placement is None else gathered(values)

    def _kept(self, values: Any) -> Any:
        """Arrays as they are where there is one device."""
        return values if self.training.placement is None else jax.tree.map(fixed, gathered(values))

    def _restore(self, folder: Folder, found: Checkpoint, note: Note) -> None:
        others = differences(note.settings, self.settings)
        if others:
            raise CheckpointError(
                f"The run in `{folder.path}` was made with {', '.join(others)}. "
                "Give the settings of that run, or name another folder."
            )
        if other_versions(note.settings, self.settings):
            self._compare_first(folder, note)
        like = _saved(self.state, None if note.best is None else Best(0, {}, self.state.params, self.state.persistent))
        values = jax.tree.map(fixed, found.fill(like))
        if int(values["iteration"]) != note.lines:
            said = f"{int(values['iteration'])} iterations, and its note {note.lines}"
            raise CheckpointError(f"The checkpoint in `{folder.path}` holds {said}. Name another folder.")
        kept = values.pop("best", None)
        self.state, self.first = TrainState(**values), note.first
        if note.best is not None:
            self.best = Best(note.best["iteration"], note.best["metrics"], **kept)
            self.stopping.best = note.best["metrics"]["loss"]
        self.stopping.waited = note.waited
        if self.processes.leads:
            folder.set_aside_after(note.lines)
        self.progress.say(f"going on after iteration {note.lines}")

    def _compare_first(self, folder: Folder, note: Note) -> None:
        """Compares by the first iteration what other versions write as other programs, and says what came of it."""
        said = f"The run in `{folder.path}` was made with {other_versions(note.settings, self.settings)}"
        if note.first is None or note.settings.get(START) != self.settings[START]:
            return self._warn(
                f"{said}, and its first iteration cannot be run again to compare: see to it that task, network and "
                "optimizer are those of that run."
            )
        try:
            task = self.training.task
            first = task.sample(self.state.key, self.training.batch_size) if is_fed(task) else None
            state, record = self._next(1, first)
            others = unlike(note.first, first_numbers(record, *self._whole((self.state.params, state.params))))
        except NonFiniteError:
            others = ["finite numbers (now it has not)"]
        if others:
            raise CheckpointError(
                f"{said}. Its first iteration had {', '.join(others)}. Give the task, the network and the optimizer of "
                "that run; if they are, go on with its versions, or name another folder."
            )
        self._warn(
            f"{said}. Its first iteration was run again and is the same but for rounding; bit for bit the run will not "
            "be as if it had never been stopped."
        )

    def _warn(self, text: str) -> None:
        if self.processes.leads:
            warnings.warn(text, CheckpointWarning, stacklevel=3)

    def _save(self) -> None:
        if self.folder is None:
            return
        state = self._whole(self.state)
        if self.metrics is None:  # another process has the folder
            return
        self.metrics.sync()
        best = None if self.best is None else {"iteration": self.best.iteration, "metrics": self.best.metrics}
        if self.best is not None and best is not None and self.best is not self._best_saved:
            self.folder.save_best(self.training.trainable.weights(self.best.params, self.best.persistent), best)
            self._best_saved = self.best
        done = int(state.iteration)
        note = Note(self.settings, done, best, self.stopping.waited, self.first)
        self.folder.save(done, _saved(state, self.best), note.plain())


def _iterate(training: Training, state: TrainState, *given: Any) -> tuple[TrainState, dict[str, Any], list[jax.Array]]:
    """One iteration, its metrics, and whether each parameter is finite after it."""
    state, found = training.iterate(state, *given)
    return state, found, [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(state.params)]


def _opened(folder: Folder, resume: bool, kept: ExitStack) -> Checkpoint | None:
    """The checkpoint to go on from, if there is one; nobody else can use the folder until `kept` is closed."""
    kept.enter_context(folder.opened())
    if folder.checkpoints and not resume:
        raise FileExistsError(f"`{folder.path}` holds a run. Go on with it by `resume=True`, or name another folder.")
    folder.refuse_remains()
    return folder.latest()


def _encoded(found: Checkpoint | None) -> bytes:
    return b"" if found is None else encode(found.arrays, found.note, found.units)


def _decoded(data: bytes) -> Checkpoint | None:
    return decode(data) if data else None


def _saved(state: TrainState, best: Best | None) -> dict[str, Any]:
    """What a checkpoint holds."""
    kept = {} if best is None else {"best": {"params": best.params, "persistent": best.persistent}}
    return {**state._asdict(), **kept}


def _plain(found: Mapping[str, Any]) -> Record:
    """Metrics as numbers, the loss first and those of the network last; a compiled function sorts them by name."""
    last = [name for name in ("rate", "rate_loss", "gradient_norm", "certificate") if name in found]
    names = ["loss", *(name for name in found if name != "loss" and name not in last), *last]
    values = jax.device_get(found)
    return {name: float(values[name]) for name in names}


@contextmanager
def _callbacks_told(iteration: int) -> Iterator[None]:
    """Within the block, what `check_finite` of a learner finds is raised as such; JAX wraps it in its own error."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        _, found, text = str(error).partition(f"{NonFiniteError.__name__}: ")
        if not found:
            raise
        raise NonFiniteError(f"In iteration {iteration}: {text.splitlines()[0]}") from error


def _require_finite(record: Record, params: Any, finite: list[jax.Array]) -> None:
    """Raises `NonFiniteError` if the loss, the gradient or a parameter is not finite."""
    paths = [name_of(keys) for keys, _ in jax.tree_util.tree_flatten_with_path(params)[0]]
    broken = [path for path, good in zip(paths, jax.device_get(finite), strict=True) if not good]
    wrong = [name for name in ("loss", "gradient_norm") if not np.isfinite(record[name])]
    if not wrong and not broken:
        return
    more = f"parameters `{broken[0]}` and {len(broken) - 1} more are" if broken[1:] else ""
    which = more or (f"parameter `{broken[0]}` is" if broken else "")
    if wrong:
        subject = "loss" if wrong[0] == "loss" else "gradient"
        rest = f"; after it the {which} not either" if broken else ""
        said = f"The {subject} of iteration {record['iteration']} is not finite{rest}."
    else:
        said = f"The {which} not finite after iteration {record['iteration']}."
    raise NonFiniteError(
        f"{said} Lower the learning rate or clip gradients; a learner compiled with `check_finite=True` says where a "
        "NaN first appears."
    )
