"""`stream` and `stream_async`: a learner, a source and an optimizer. Here settings are checked and put together."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import jax.numpy as jnp

from foretrace._checks import (
    call_problem,
    optional_count,
    require_count,
    require_flag,
    require_function,
    require_optimizer,
    require_positive,
)
from foretrace.learners.losses import check_loss_call
from foretrace.train.folder import Folder
from foretrace.train.losses import take_readout, take_spikes
from foretrace.train.progress import stream_of
from foretrace.train.streaming.items import (
    ArraysSource,
    AsyncItemsSource,
    Awaited,
    Forms,
    ItemsSource,
    is_arrays,
)
from foretrace.train.streaming.learning import Learning
from foretrace.train.streaming.progress import StreamProgress
from foretrace.train.streaming.result import StreamResult
from foretrace.train.streaming.run import OnStep, Plan, StreamRun

GATHERED, HOLD = 256, 0.005
"""Steps of a piece where nobody waits for a prediction, and the seconds for which items are gathered for it."""


def squared_error(out: Any, y: Any) -> Any:
    """The mean squared error of a readout."""
    return jnp.mean((take_readout(out) - y) ** 2)


def stream(
    learner: Any,
    source: Any,
    optimizer: Any,
    *,
    loss: Callable[..., Any] = squared_error,
    params: Any = None,
    state: Any = None,
    every: int = 1,
    piece: int | None = None,
    window: int = 1000,
    metrics: Mapping[str, Callable[[Any, Any], Any]] | None = None,
    on_step: OnStep | None = None,
    limit: int | None = None,
    readout: Callable[[Any], Any] = take_readout,
    spikes: Callable[[Any], Any] = take_spikes,
    folder: str | os.PathLike[str] | None = None,
    resume: bool = False,
    checkpoint_every: float = 60.0,
    keep: int = 2,
    progress: bool | TextIO = True,
) -> StreamResult:
    """Learns from a stream: predicts each item, learns from it, and goes on, in memory that does not grow.

    Args:
        learner: A learner from `foretrace.compile`, of any kind of model and by any rule that learns online.
        source: An iterable, or asynchronous iterable, of items `(x, y)`: the input of one step and its target.
            `(x, None)` or `x` is predicted alone; `(x, y, external)` adds what some rules take at every step. Or a pair
            of arrays `(xs, ys)` with time first, or a function from the number of steps done before to a source.
        optimizer: An optax gradient transformation.
        loss: `loss(out, y)` of one step; by default the mean squared error of the readout.
        params: The parameters to begin with; None for those that the learner has, or was compiled with.
        state: The state to begin with; None likewise.
        every: Steps between updates, by the gradient of these steps' summed losses.
        piece: Steps that are gathered before they are computed, at most: more of them are faster, and the prediction of
            each comes later. No result depends on it. None for 1 where `on_step` waits for predictions, else for what
            comes within 5 ms, up to 256. Of arrays and lists, and of a source with a method `ready()` that tells
            whether an item can be had without waiting, None takes what is there, up to 256, in either case.
        window: Steps that the metrics are means of.
        metrics: Functions of the readout and the target of one step, by name.
        on_step: Called with a `StreamStep` after each step; what it returns ends the stream where it is true.
        limit: Steps after which to end, those before a resumption included; None to go on until the source ends.
        readout: Takes the prediction from what a step returns; by default `out` of a record that has it, or everything.
        spikes: Takes the spikes; by default `spikes` of a record that has them.
        folder: Where checkpoints are written; None for nowhere.
        resume: Whether to go on with the stream in `folder`, if there is one.
        checkpoint_every: Seconds between checkpoints; one is written at the beginning and at the end too.
        keep: How many checkpoints are kept.
        progress: Whether progress is shown on the standard error stream, or a stream of your own.

    Returns:
        Parameters, totals, windowed metrics, and why the stream stopped. A module holds the values of the end
        afterwards. Ctrl-C ends a stream in good order, and it is returned like any other; SIGTERM and SIGHUP do the
        same, with `Terminated` raised once it is saved.

    Raises:
        TypeError: Not a learner, not an optimizer, or not a source.
        ValueError: A setting that cannot be, or a rule that does not learn online.
        StreamError: The source failed, or gave an item of another form or with a NaN. Its `result` is the stream up to
            there, which is saved too.
        DivergedError: The loss or a parameter became a NaN or infinite; likewise.
        CheckpointError: The folder holds a stream with other settings, or no checkpoint in it is whole.
        FileExistsError: The folder holds a run, and `resume` is off.
        FolderInUseError: Another run is under way in the folder.
        Terminated: The process was told to end by SIGTERM or SIGHUP. The stream is saved.

    Examples:
        >>> import jax.numpy as jnp, numpy as np, optax
        >>> import foretrace as ft
        >>> from foretrace import train
        >>> step = lambda w, h, x: (0.5 * h + x @ w, 0.5 * h + x @ w)
        >>> learner = ft.compile(step, "D_RTRL", jnp.ones(2), params=jnp.zeros((2, 1)), state=jnp.zeros(1))
        >>> xs = np.random.default_rng(0).normal(size=(400, 2))
        >>> result = train.stream(learner, (xs, xs[:, :1]), optax.sgd(0.1), progress=False)
        >>> result.steps, result.stopped_because
        (400, 'ended')
    """
    given = dict(locals())
    run, forms = _prepared(**given)
    waited: list[Awaited] = []

    def opened(steps: int) -> Any:
        found = _from(source, steps)
        if hasattr(found, "__aiter__"):
            _refuse_inside_a_loop()
            found = Awaited(found)
            waited.append(found)
        return _source(found, forms, steps, _hold(piece))

    try:
        return run.go(opened)
    finally:
        for one in waited:
            one.close()


async def stream_async(learner: Any, source: Any, optimizer: Any, **settings: Any) -> StreamResult:
    """As `stream`, inside of a running event loop: `result = await train.stream_async(...)`.

    While a piece is computed the event loop waits; between pieces, and while the source is waited for, others run. A
    task that is cancelled saves the stream first.

    Args:
        learner: As for `stream`.
        source: An asynchronous iterable of items, or a function from the number of steps done before to one.
        optimizer: As for `stream`.
        **settings: As for `stream`.
    """
    run, forms = _prepared(learner=learner, source=source, optimizer=optimizer, **{**DEFAULTS, **_known(settings)})

    def opened(steps: int) -> AsyncItemsSource:
        found = _from(source, steps)
        if not hasattr(found, "__aiter__"):
            raise TypeError(
                f"`stream_async` takes an asynchronous iterable; got {type(found).__name__}. Call `stream`."
            )
        return AsyncItemsSource(found, forms, steps, _hold(settings.get("piece")))

    return await run.go_async(opened)


DEFAULTS: dict[str, Any] = dict(stream.__kwdefaults__ or {})


def _known(settings: dict[str, Any]) -> dict[str, Any]:
    strange = [name for name in settings if name not in DEFAULTS]
    if strange:
        raise TypeError(f"`stream_async` has no setting `{strange[0]}`. It has {', '.join(DEFAULTS)}.")
    return settings


def _prepared(
    learner: Any,
    source: Any,
    optimizer: Any,
    *,
    loss: Any,
    params: Any,
    state: Any,
    every: Any,
    piece: Any,
    window: Any,
    metrics: Any,
    on_step: Any,
    limit: Any,
    readout: Any,
    spikes: Any,
    folder: Any,
    resume: Any,
    checkpoint_every: Any,
    keep: Any,
    progress: Any,
) -> tuple[StreamRun, Forms]:
    """The run that the settings ask for, checked."""
    if not hasattr(type(learner), "pure"):
        raise TypeError(
            f"`stream` takes a learner; got {type(learner).__name__}. Make one of the model and a rule by "
            '`foretrace.compile(model, "D_RTRL", x, ...)`.'
        )
    pure, held = learner.pure, learner.pure is not learner
    _require_online(pure)
    require_optimizer("optimizer", optimizer)
    check_loss_call(loss, targets=True)
    if held and (params is not None or state is not None):
        raise TypeError("A module holds its own parameters and states: leave out `params` and `state`.")
    if on_step is not None:
        require_function("on_step", on_step, "`on_step(step)`")
    forms = Forms.of(pure)
    learning = Learning(
        learner=pure,
        optimizer=optimizer,
        loss=loss,
        metrics=_metrics(metrics),
        readout=readout,
        spikes=spikes,
        every=require_count("every", every),
        shown=on_step is not None,
        x=forms.x,
    )
    first = learning.start(
        learner.params if params is None else pure.model.split.params_of(params),
        learner.carry if state is None else pure.init(state),
    )
    plan = Plan(
        piece=_piece(piece, source, on_step is not None),
        limit=optional_count("limit", limit),
        window=require_count("window", window),
        checkpoint_every=require_positive("checkpoint_every", checkpoint_every, "a number of seconds above 0"),
        resume=require_flag("resume", resume),
        on_step=on_step,
        put=learner.put if held else None,
    )
    place = None if folder is None else Folder(Path(folder), require_count("keep", keep, "checkpoints"))
    shown = StreamProgress(f"stream {pure.rule.name}", stream_of(progress))
    run = StreamRun(learning, forms, first, plan, place, shown)
    return run, forms


def _require_online(learner: Any) -> None:
    if learner.rule.exact or learner.window is not None:
        what = learner.rule.name if learner.rule.exact else f"A window of {learner.window} steps"
        raise ValueError(
            f"{what} goes back through steps that are gone in a stream. Compile the model with a rule that learns "
            'online, such as "D_RTRL", without `window`; or cut the stream into sequences for `learner.train`.'
        )


def _metrics(metrics: Any) -> tuple[tuple[str, Any], ...]:
    found = dict(metrics or {})
    for name, function in found.items():
        require_function(f"metrics[{name!r}]", function, "`metric(readout, y)`")
        problem = call_problem(function, 2)
        if problem:
            raise TypeError(f"The metric `{name}` is called with the readout and the target, and cannot be: {problem}.")
        if name in ("step", "loss"):
            raise ValueError(f"A metric cannot be named `{name}`: the record of the history has it already.")
    return tuple(found.items())


def _piece(piece: Any, source: Any, looked_at: bool) -> int:
    if piece is not None:
        return require_count("piece", piece)
    whole = is_arrays(source) or isinstance(source, Sequence) or callable(getattr(source, "ready", None))
    return 1 if looked_at and not whole else GATHERED


def _from(source: Any, steps: int) -> Any:
    """The source from a step on, where it can say so."""
    if callable(source) and not hasattr(source, "__iter__") and not hasattr(source, "__aiter__"):
        return source(steps)
    return source


def _hold(piece: int | None) -> float | None:
    """For how long items are gathered where nobody said how many."""
    return HOLD if piece is None else None


def _source(found: Any, forms: Forms, steps: int, hold: float | None) -> Any:
    if is_arrays(found):
        xs, ys = found
        return ArraysSource(xs, ys, forms, steps)
    if not hasattr(found, "__iter__"):
        raise TypeError(f"A stream is an iterable of items `(x, y)`, or a pair of arrays; got {type(found).__name__}.")
    return ItemsSource(found, forms, steps, None if isinstance(found, Sequence) else hold)


def _refuse_inside_a_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        "`stream` would block the event loop that is running here. Write `result = await train.stream_async(...)`."
    )
