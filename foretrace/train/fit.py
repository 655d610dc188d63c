"""`fit`: a learner, a task and an optimizer, until the goal is reached. Here settings are checked and put together."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

import jax
import jax.numpy as jnp

from foretrace.learners.devices import Shardings
from foretrace.tasks import BatchTask, as_task
from foretrace.train.checkpoint import name_of
from foretrace.train.folder import Folder
from foretrace.train.iteration import Training, TrainState
from foretrace.train.losses import Rates, StepLoss, milliseconds, take_readout, take_spikes
from foretrace.train.placement import Placement, placement_of
from foretrace.train.processes import processes_of
from foretrace.train.progress import Progress, stream_of
from foretrace.train.result import Result
from foretrace.train.run import Run
from foretrace.train.stopping import Goal, Stopping, checked_goal


def fit(
    learner: Any,
    task: Any,
    optimizer: Any,
    *,
    iterations: int,
    batch_size: int | None = None,
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
    shardings: Shardings | None = None,
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
        learner: A learner from `foretrace.compile`, of any kind of model and by any rule, `"BPTT"` included.
        task: A task of `foretrace.tasks`, its name, a pair of arrays `(X, y)`, as `tasks.from_arrays` takes them, an
            iterable of batches `(X, y)`, as `tasks.from_batches` takes them (a list, a data loader, a generator); or
            anything with the methods of a task.
        optimizer: An optax gradient transformation, schedules included.
        iterations: Batches of trials to learn from, those before a resumption included.
        batch_size: Trials in a batch. A learner of a function must have been compiled for it. None for the size of the
            first batch, where the task is made of batches.
        params: The parameters to begin with, of a step function.
        state: The state that trials begin with; None for the one that the learner was compiled with.
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
        shardings: Where arrays are placed on many devices, from `learner.shardings(mesh, batch="data")`; None for one
            device. See docs/many_devices.md, also for several processes.
        validate_every: Iterations between validations on `task.test_trials`; the last iteration is validated too.
        stop: True to stop at the task's goal, or a goal `(metric, '<' or '>', value)`, or a function of the metrics of
            a validation.
        patience: Validations without a lower loss after which to stop.
        folder: Where checkpoints, the best weights and `metrics.jsonl` are written; None for nowhere.
        resume: Whether to go on with the run in `folder`, if there is one.
        checkpoint_every: Iterations between checkpoints; one is written at the beginning and at the end too.
        keep: How many checkpoints are kept.
        progress: Whether progress is shown on the standard error stream, or a stream of your own.

    Returns:
        Parameters at the end and, as `best`, those of the validation with the lowest loss; metrics, the whole state,
        and why the run stopped. A module holds the values of the end afterwards. Ctrl-C ends the run in good order: it
        is saved and returned like any other. So do SIGTERM and SIGHUP where there is a folder, with `Terminated` raised
        once the run is saved; signals are heard in the main thread, unless the program has handlers of its own.

    Raises:
        TypeError: Not a learner, not an optimizer, or a parameter that is not a floating-point number.
        ValueError: A setting that cannot be.
        CheckpointError: The folder holds a run with other settings, or no checkpoint in it is whole.
        FileExistsError: The folder holds a run, and `resume` is off; or it has files of a run, and no checkpoint.
        FolderInUseError: Another run is under way in the folder.
        DivergedError: The loss, the gradient or a parameter became a NaN or infinite. Its `result` is the run until
            then, which is saved too.
        Terminated: The process was told to end by SIGTERM or SIGHUP. The run is saved.

    Examples:
        See `docs/training.md`.
    """
    _check_optimizer(optimizer)
    task = as_task(task)
    batch_size = _batch_size(batch_size, task)
    _check(iterations, batch_size, update_every, validate_every, checkpoint_every, keep, patience)
    if (stop or patience) and validate_every is None:
        raise ValueError("`stop` and `patience` look at validations: say how often with `validate_every=`.")
    if isinstance(task, BatchTask) and validate_every is not None and not task.n_test:
        raise ValueError(
            "Validation needs trials that are held out, and these batches have none: pass "
            "`tasks.from_batches(batches, test=(X_test, y_test))`, or leave out `validate_every`."
        )
    trainable = _trainable(learner)(batch_size, seed, params, state)
    _check_params(trainable.params)
    placement = _placement(shardings, trainable.params, batch_size)
    if isinstance(task, BatchTask):
        task = task.for_outputs(_readout_width(trainable.learner, readout))
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
        placement=placement,
    )
    first = training.start(seed)
    _check_output(training, first)
    leads = processes_of(None if placement is None else placement.mesh).leads
    named = dict(seed=seed, clip=clip, rate_target=rate_target, rate_cost=rate_cost, rate_memory=rate_memory)
    run = Run(
        training,
        first,
        Stopping(checked_goal(stop, task), patience),
        named,
        None if folder is None else Folder(Path(folder), keep),
        Progress(iterations, f"{task.name} {trainable.rule.split(' ')[0]}", stream_of(progress if leads else False)),
    )
    return run.go(iterations, resume, validate_every, checkpoint_every)


def _trainable(learner: Any) -> Callable[..., Any]:
    found = getattr(learner, "trainable", None)
    if not callable(found):
        raise TypeError(
            f"`fit` trains a learner; got {type(learner).__name__}. Make one of the model and a rule by "
            '`foretrace.compile(model, "D_RTRL", x, ...)`, or back through time by the rule `"BPTT"`.'
        )
    return found


def _placement(shardings: Any, params: Any, batch_size: int) -> Placement | None:
    if shardings is not None:
        return placement_of(shardings, params, batch_size)
    if jax.process_count() > 1:
        raise ValueError(
            f"There are {jax.process_count()} processes, and each would train a network of its own: say where arrays "
            'are placed, `shardings=learner.shardings(jax.make_mesh((jax.device_count(),), ("data",)), batch="data")`.'
        )
    return None


def _clipped(optimizer: Any, clip: float) -> Any:
    if not isinstance(clip, int | float) or isinstance(clip, bool) or clip <= 0:
        raise ValueError(f"`clip` is the largest norm of the gradient, above 0; got {clip!r}.")
    try:
        import optax
    except ImportError as error:
        raise ImportError("Clipping needs optax: pip install 'foretrace[train]'") from error
    return optax.chain(optax.clip_by_global_norm(clip), optimizer)


def _rates(target: float | None, cost: float, memory: float) -> Rates | None:
    if cost < 0 or not 0 <= memory < 1:
        raise ValueError(f"`rate_cost` is not negative and `rate_memory` in [0, 1); got {cost!r} and {memory!r}.")
    if (target is None) != (cost == 0):
        raise ValueError("A pull on firing rates needs both `rate_target=` (in Hz) and a `rate_cost=` above 0.")
    return None if target is None else Rates(target / 1000.0, cost, memory)


def _batch_size(given: int | None, task: Any) -> int:
    if given is None and not isinstance(task, BatchTask):
        raise ValueError("Say how many trials are in a batch with `batch_size=`, as the learner was compiled for it.")
    return task.batch_size if given is None else given


def _readout_width(learner: Any, readout: Callable[[Any], Any]) -> int | None:
    """How many outputs a network has; None where its readout is no array of trials and outputs."""
    outputs = [jax.ShapeDtypeStruct(leaf.aval.shape, leaf.aval.dtype) for leaf in learner.plan.program.outputs]
    found = jax.eval_shape(lambda given: readout(learner.model.unflatten_output(given)), outputs)
    return found.shape[-1] if getattr(found, "ndim", 0) == 2 else None


def _check_optimizer(optimizer: Any) -> None:
    if not callable(getattr(optimizer, "init", None)) or not callable(getattr(optimizer, "update", None)):
        hint = ": call it, `optax.adam(1e-3)` for instance" if callable(optimizer) else ""
        raise TypeError(
            f"The optimizer is an optax gradient transformation, with `init` and `update`; got "
            f"{getattr(optimizer, '__name__', repr(optimizer))}{hint}."
        )


def _check(iterations: Any, batch_size: Any, *optional: Any) -> None:
    names = ("iterations", "batch_size", "update_every", "validate_every", "checkpoint_every", "keep", "patience")
    for name, value in zip(names, (iterations, batch_size, *optional), strict=True):
        if value is None and name not in ("iterations", "batch_size"):
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"`{name}` is a whole number from 1 on; got {value!r}.")


def _check_params(params: Any) -> None:
    for keys, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
            raise TypeError(
                f"Not floating, so not trainable: the parameter `{name_of(keys)}` ({jnp.result_type(leaf)}). "
                "Keep integers, masks and random keys in the state, in the inputs, or as constants of the step."
            )


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
