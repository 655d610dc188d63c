"""`fit`: a learner, a task and an optimizer, until the goal is reached; killed at any moment, it can go on.

The loop itself does little: it calls the one compiled function of `foretrace.train.iteration`, notes the metrics,
validates now and then, and writes checkpoints. A checkpoint holds the whole `TrainState`, so a run that goes on from
one ends with exactly the weights of a run that was never stopped.
"""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

import jax
import numpy as np

from foretrace.errors import NonFiniteError
from foretrace.train.bptt import as_trainable
from foretrace.train.checkpoint import Checkpoint, CheckpointError
from foretrace.train.contract import Held
from foretrace.train.folder import Folder, MetricsFile, Record
from foretrace.train.iteration import Training, TrainState, fixed
from foretrace.train.losses import Rates, StepLoss, milliseconds, take_readout, take_spikes
from foretrace.train.progress import Progress, stream_of
from foretrace.train.result import VALIDATION, Result, validation_of
from foretrace.train.settings import describe, differences
from foretrace.train.stopping import Goal, Stopping, checked_goal


def fit(
    learner: Any,
    task: Any,
    optimizer: Any,
    *,
    iterations: int,
    batch_size: int,
    params: Any = None,
    state: Any = None,
    seed: int = 0,
    update_every: int | None = None,
    stream: bool = False,
    clip: float | None = None,
    rate_target: float | None = None,
    rate_cost: float = 0.0,
    rate_memory: float = 0.0,
    readout: Callable[[Any], Any] = take_readout,
    spikes: Callable[[Any], Any] = take_spikes,
    external: Callable[[Any], Any] | None = None,
    validate_every: int | None = None,
    stop: bool | Goal | Callable[[Mapping[str, Any]], bool] | None = None,
    patience: int | None = None,
    folder: str | os.PathLike[str] | None = None,
    resume: bool = False,
    checkpoint_every: int = 50,
    keep: int = 2,
    progress: bool | TextIO = True,
) -> Result:
    """Trains a network on a task.

    Args:
        learner: A learner from `foretrace.compile`, of a function or a module; or `train.BPTT(model)`.
        task: A task of `foretrace.tasks`, or anything with its methods.
        optimizer: An optax gradient transformation, schedules included.
        iterations: Batches of trials to learn from, those before a resumption included.
        batch_size: Trials in a batch. A learner of a function must have been compiled for it.
        params: The parameters to begin with, of a step function.
        state: The state that trials begin with, of a step function; None for zeros.
        seed: Of the trials, and of brainstate's random numbers where a module is trained.
        update_every: Steps between updates within a trial, while traces run on; None for one update after each trial.
        stream: Whether states and traces run on from one batch of trials to the next, as in an endless stream.
        clip: The largest norm of the gradient, all parameters together; a longer one is scaled down to it.
        rate_target: The firing rate to pull each neuron to, in Hz.
        rate_cost: How much a deviation costs: `rate_cost / 2 * sum((f - target)**2)` with rates in spikes per ms.
        rate_memory: The share of the old estimate of each rate that is kept after a trial; see docs/training.md.
        readout: Takes the readout from what a step returns; by default `out` of a record that has it, or everything.
        spikes: Takes the spikes, `(batch, neurons)`; by default `spikes` of a record that has them.
        external: From a batch of trials to what the rule takes at each step, time first (`OSTTP`, `ThreeFactor`).
        validate_every: Iterations between validations on `task.test_trials`; the last iteration is validated too.
        stop: True to stop at the task's goal, or a goal `(metric, '<' or '>', value)`, or a function of the metrics of
            a validation.
        patience: Validations without a lower loss after which to stop.
        folder: Where checkpoints and `metrics.jsonl` are written; None for nowhere.
        resume: Whether to go on with the run in `folder`, if there is one.
        checkpoint_every: Iterations between checkpoints; one is written at the beginning and at the end too.
        keep: How many checkpoints are kept.
        progress: Whether progress is shown on the standard error stream, or a stream of your own.

    Returns:
        Parameters, metrics, the whole state, and why the run stopped. A module holds its trained values afterwards.
        Ctrl-C ends the run in good order: it is saved and returned like any other.

    Raises:
        TypeError: Not a learner, or not an optimizer.
        ValueError: A setting that cannot be.
        CheckpointError: The folder holds a run with other settings, or no checkpoint in it is whole.
        FileExistsError: The folder holds a run, and `resume` is off.
        NonFiniteError: The loss became a NaN or infinite.

    Examples:
        See `docs/training.md`.
    """
    _check(optimizer, iterations, batch_size, update_every, validate_every, checkpoint_every, keep, patience)
    if (stop or patience) and validate_every is None:
        raise ValueError("`stop` and `patience` look at validations: say how often with `validate_every=`.")
    trainable = as_trainable(learner, params, state, batch_size, seed)
    training = Training(
        trainable=trainable,
        task=task,
        optimizer=optimizer if clip is None else _clipped(optimizer, clip),
        loss=StepLoss(task, readout, spikes),
        batch_size=batch_size,
        update_every=update_every,
        stream=stream,
        rates=_rates(rate_target, rate_cost, rate_memory),
        external=external,
        dt=milliseconds(task.dt),
    )
    first = training.start(seed)
    _check_output(training, first)
    named = dict(seed=seed, clip=clip, rate_target=rate_target, rate_cost=rate_cost, rate_memory=rate_memory)
    run = _Run(
        training,
        first,
        Stopping(checked_goal(stop, task), patience),
        {} if folder is None else describe(training, first, named),
        None if folder is None else Folder(Path(folder), keep),
        Progress(iterations, f"{task.name} {trainable.rule.split(' ')[0]}", stream_of(progress)),
    )
    return run.go(iterations, resume, validate_every, checkpoint_every)


class _Run:
    """A run under way."""

    def __init__(
        self,
        training: Training,
        state: TrainState,
        stopping: Stopping,
        settings: dict[str, Any],
        folder: Folder | None,
        progress: Progress,
    ) -> None:
        self.training, self.stopping, self.settings = training, stopping, settings
        self.folder, self.progress = folder, progress
        self.state, self.records = state, list[Record]()
        self.iterate, self.evaluate = jax.jit(training.iterate), jax.jit(training.evaluate)

    def go(self, iterations: int, resume: bool, validate_every: int | None, checkpoint_every: int) -> Result:
        """The whole run."""
        metrics = self._open(resume)
        try:
            reason = self._loop(iterations, validate_every, checkpoint_every, metrics)
        except KeyboardInterrupt:
            reason = "interrupted"
            if len(self.records) == int(self.state.iteration):
                self._save(metrics)
        finally:
            if metrics is not None:
                metrics.close()
        state, trainable = self.state, self.training.trainable
        trainable.finish(state.params, self._held())
        self.progress.close(f"stopped after {int(state.iteration)} iterations: {reason}")
        return Result(state.params, self.records, state, reason, None if self.folder is None else self.folder.path)

    def _loop(
        self, iterations: int, validate_every: int | None, checkpoint_every: int, metrics: MetricsFile | None
    ) -> str:
        done = int(self.state.iteration)
        reason = self.stopping.reason(validation_of(self.records[-1]) if self.records else None)
        while reason is None and done < iterations:
            began = time.perf_counter()
            state, found = self.iterate(self.state)
            record = {"iteration": done + 1, **_plain(found)}
            _require_finite(record)
            self.state, done = state, done + 1
            if validate_every is not None and (done % validate_every == 0 or done == iterations):
                record |= self._validate()
            record["seconds"] = round(time.perf_counter() - began, 4)
            self.records.append(record)
            if metrics is not None:
                metrics.append(record)
            self.progress.update(record)
            reason = self.stopping.reason(validation_of(record))
            if done % checkpoint_every == 0 or done >= iterations or reason is not None:
                self._save(metrics)
        return reason or "iterations"

    def _validate(self) -> Record:
        batches, counts = [], []
        for trial in self.training.task.test_trials(self.training.batch_size):
            batches.append(_plain(self.evaluate(self.state.params, self.state.lasting, trial)))
            counts.append(float(getattr(trial, "n_trials", self.training.batch_size)))
        if not batches:
            raise ValueError(f"The task `{self.training.task.name}` gave no test trials.")
        mean = {name: float(np.average([b[name] for b in batches], weights=counts)) for name in batches[0]}
        self.stopping.see(mean)
        return {f"{VALIDATION}{name}": value for name, value in mean.items()}

    def _held(self) -> Held:
        passing = self.state.passing if self.training.stream else self.training.trainable.begin()
        return Held(self.state.lasting, passing)

    def _open(self, resume: bool) -> MetricsFile | None:
        """Begins or goes on with the run in the folder."""
        if self.folder is None:
            if resume:
                raise ValueError("`resume=True` goes on with the run in a folder: say which with `folder=`.")
            return None
        if self.folder.checkpoints and not resume:
            raise FileExistsError(
                f"`{self.folder.path}` holds a run. Go on with it by `resume=True`, or name another folder."
            )
        self.folder.prepare()
        found = self.folder.latest()
        if found is not None:
            self._restore(found)
        self.records = self.folder.cut_metrics(0 if found is None else found.note["lines"])
        metrics = self.folder.open_metrics()
        if found is None:
            self._save(metrics)
        return metrics

    def _restore(self, found: Checkpoint) -> None:
        assert self.folder is not None
        others = differences(found.note["settings"], self.settings)
        if others:
            raise CheckpointError(
                f"The run in `{self.folder.path}` was made with {', '.join(others)}. "
                "Give the settings of that run, or name another folder."
            )
        self.state = jax.tree.map(fixed, found.fill(self.state))
        self.stopping.best, self.stopping.waited = found.note["best"], found.note["waited"]
        self.progress.say(f"going on after iteration {int(self.state.iteration)}")

    def _save(self, metrics: MetricsFile | None) -> None:
        if self.folder is None or metrics is None:
            return
        metrics.sync()
        note = {
            "settings": self.settings,
            "lines": len(self.records),
            "best": self.stopping.best,
            "waited": self.stopping.waited,
        }
        self.folder.save(int(self.state.iteration), self.state, note)


def _plain(found: Mapping[str, Any]) -> Record:
    """Metrics as numbers, the loss first and those of the network last; a compiled function sorts them by name."""
    last = [name for name in ("rate", "rate_loss", "gradient_norm") if name in found]
    names = ["loss", *(name for name in found if name != "loss" and name not in last), *last]
    values = jax.device_get(found)
    return {name: float(values[name]) for name in names}


def _require_finite(record: Record) -> None:
    if not np.isfinite(record["loss"]) or not np.isfinite(record["gradient_norm"]):
        what = "loss" if not np.isfinite(record["loss"]) else "gradient"
        raise NonFiniteError(
            f"The {what} of iteration {record['iteration']} is not finite. Lower the learning rate or clip gradients; "
            "a learner compiled with `check_finite=True` says where a NaN first appears."
        )


def _clipped(optimizer: Any, clip: float) -> Any:
    if not isinstance(clip, int | float) or isinstance(clip, bool) or clip <= 0:
        raise ValueError(f"`clip` is the largest norm of the gradient, above 0; got {clip!r}.")
    try:
        import optax
    except ImportError as error:
        raise ImportError("Clipping needs optax: pip install foretrace[train]") from error
    return optax.chain(optax.clip_by_global_norm(clip), optimizer)


def _rates(target: float | None, cost: float, memory: float) -> Rates | None:
    if cost < 0 or not 0 <= memory < 1:
        raise ValueError(f"`rate_cost` is not negative and `rate_memory` in [0, 1); got {cost!r} and {memory!r}.")
    if (target is None) != (cost == 0):
        raise ValueError("A pull on firing rates needs both `rate_target=` (in Hz) and a `rate_cost=` above 0.")
    return None if target is None else Rates(target / 1000.0, cost, memory)


def _check(optimizer: Any, iterations: Any, batch_size: Any, *optional: Any) -> None:
    if not callable(getattr(optimizer, "init", None)) or not callable(getattr(optimizer, "update", None)):
        hint = ": call it, `optax.adam(1e-3)` for instance" if callable(optimizer) else ""
        raise TypeError(
            f"The optimizer is an optax gradient transformation, with `init` and `update`; got "
            f"{getattr(optimizer, '__name__', repr(optimizer))}{hint}."
        )
    names = ("iterations", "batch_size", "update_every", "validate_every", "checkpoint_every", "keep", "patience")
    for name, value in zip(names, (iterations, batch_size, *optional), strict=True):
        if value is None and name not in ("iterations", "batch_size"):
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"`{name}` is a whole number from 1 on; got {value!r}.")


def _check_output(training: Training, state: TrainState) -> None:
    output, spikes = training.sizes(state)
    if training.rates is not None and spikes is None:
        raise ValueError(
            "Firing rates cannot be pulled: the step returns no spikes. Let it return `{'out': ..., 'spikes': ...}`, "
            "or say how to find them with `spikes=`."
        )
    want = (training.batch_size, training.task.n_outputs)
    if getattr(output, "shape", None) != want:
        found = getattr(output, "shape", type(output).__name__)
        raise ValueError(
            f"The readout of a step is {found}, and the task `{training.task.name}` wants {want}: trials and outputs. "
            "Where a step returns more than its readout, say which part it is with `readout=`."
        )
