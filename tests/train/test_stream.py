"""A stream: predicted before it is learned from, in order, whatever the pieces; ended in good order, and resumed."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import foretrace as ft
from foretrace import train
from foretrace.train.streaming import items as sources
from foretrace.train.streaming import window as windows
from foretrace.train.streaming.entry import _piece
from foretrace.train.streaming.items import Forms, ItemsSource
from foretrace.train.streaming.window import History
from train.small_stream import ADAM, arrays, items, learner, loss, stream
from train.small_task import make_net, make_params


def same(one: Any, other: Any) -> bool:
    """Whether two trees of arrays are equal bit for bit."""
    pairs = zip(*map(jax.tree.leaves, (one, other)), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


def close(one: Any, other: Any) -> bool:
    pairs = zip(*map(jax.tree.leaves, (one, other)), strict=True)
    return all(np.allclose(a, b, rtol=1e-12, atol=1e-14) for a, b in pairs)


@pytest.mark.parametrize("every", [1, 4])
def test_learns_like_the_learner_itself(every: int) -> None:
    xs, ys = arrays(20)
    params, opt_state, carry, losses = learner().train(
        make_params(), learner().init(), xs, ys, loss=loss, optimizer=ADAM, update_every=every
    )
    result = stream((xs, ys), every=every)
    assert close((result.params, result.state.opt_state, result.state.carry), (params, opt_state, carry))
    assert result.totals["loss"] == pytest.approx(float(losses.mean()))
    assert (result.steps, result.labelled, result.stopped_because) == (20, 20, "ended")


def test_prediction_comes_before_learning() -> None:
    told: list[train.StreamStep] = []
    result = stream(zip(*arrays(6), strict=True), optimizer=optax.sgd(0.5), on_step=told.append)
    params, carry = make_params(), learner().init()
    for (x, y), seen in zip(zip(*arrays(6), strict=True), told, strict=True):
        before = params
        grads, _, _ = learner().grad(params, carry, x[None], y[None], loss=loss)
        carry, out = learner().step(params, carry, x)
        params = jax.tree.map(lambda p, g: p - 0.5 * g, params, grads)
        assert np.allclose(seen.prediction, out, rtol=1e-12)
        assert np.array_equal(seen.target, y)
        assert seen.loss == pytest.approx(float(loss(out, y)))
        assert not close(before, params)
    assert [seen.number for seen in told] == [1, 2, 3, 4, 5, 6]
    assert close(result.params, params)


class Bursts:
    """Items that arrive a few at a time: what is ready is known."""

    def __init__(self, count: int) -> None:
        self.items, self.taken = list(zip(*arrays(count), strict=True)), 0

    def __iter__(self) -> Iterator[Any]:
        for item in self.items:
            self.taken += 1
            yield item

    def ready(self) -> bool:
        return self.taken % 3 != 0


def test_no_result_depends_on_the_pieces() -> None:
    of_arrays = stream(arrays(40))
    one_by_one = stream(zip(*arrays(40), strict=True))
    in_fours = stream(zip(*arrays(40), strict=True), piece=4)
    in_bursts = stream(Bursts(40))
    for other in (one_by_one, in_fours, in_bursts):
        assert close(of_arrays.state, other.state)
        assert other.totals["loss"] == pytest.approx(of_arrays.totals["loss"], rel=1e-12)


def test_items_are_gathered_for_a_while_where_nobody_looks_on(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, taken = [0.0], list[int]()
    monkeypatch.setattr(sources.time, "monotonic", lambda: clock[0])
    source = ItemsSource(ticking(clock), Forms.of(learner()), 0, hold=0.005)
    while not (found := source.take(256)).ended:
        assert found.piece is not None
        taken.append(found.piece.length)
    assert taken == [6, 6]
    assert _piece(None, iter([]), looked_at=True) == 1


def ticking(clock: list[float]) -> Iterator[Any]:
    """Items a millisecond apart."""
    for item in zip(*arrays(12), strict=True):
        clock[0] += 0.001
        yield item


def test_what_is_ready_is_gathered_and_no_more_is_waited_for() -> None:
    source, told = Bursts(12), []
    stream(source, piece=4, on_step=lambda seen: told.append((seen.number, source.taken)))
    assert told == [(number, 3 * ((number + 2) // 3)) for number in range(1, 13)]


def test_steps_without_a_target_are_predicted_alone() -> None:
    told: list[train.StreamStep] = []
    result = stream([(x, None) for x in arrays(5)[0]] + list(arrays(2)[0]), on_step=told.append)
    carry, outputs = learner().evolve(make_params(), learner().init(), np.concatenate([arrays(5)[0], arrays(2)[0]]))
    assert same(result.params, make_params())
    assert close(result.state.carry, carry)
    assert np.allclose([seen.prediction for seen in told], outputs)
    assert (result.steps, result.labelled, result.metrics["loss"]) == (7, 0, None)
    assert {seen.loss for seen in told} == {None}


@pytest.mark.parametrize("piece", [1, 4])
def test_only_steps_with_a_target_are_learned_from(piece: int) -> None:
    xs, ys = arrays(10)
    known = np.arange(10) % 3 == 0
    result = stream([(x, y if k else None) for x, y, k in zip(xs, ys, known, strict=True)], piece=piece, every=5)
    params, opt_state, carry, _ = learner().train(
        make_params(), learner().init(), xs, ys, loss=loss, optimizer=ADAM, update_every=5, mask=known * 1.0
    )
    assert close((result.params, result.state.opt_state, result.state.carry), (params, opt_state, carry))
    assert result.labelled == 4


def test_period_without_a_target_makes_no_update() -> None:
    xs, ys = arrays(9)
    result = stream([(x, y if k < 3 else None) for k, (x, y) in enumerate(zip(xs, ys, strict=True))], every=3)
    assert int(result.state.opt_state[0].count) == 1


def test_rule_gets_what_it_takes_from_outside() -> None:
    by = learner().with_rule("three_factor")
    xs, ys = arrays(6)
    modulators = np.linspace(-1, 1, 6)
    result = stream(zip(xs, ys, modulators, strict=True), by)
    other = stream(zip(xs, ys, -modulators, strict=True), by)
    assert not close(result.params, other.params)
    with pytest.raises(train.StreamError, match="Item 2: it lacks"):
        stream([(xs[0], ys[0], 1.0), (xs[1], ys[1])], by)


def test_metrics_are_means_over_the_window() -> None:
    told: list[train.StreamStep] = []
    size = {"size": lambda out, y: jnp.max(jnp.abs(out))}
    result = stream(arrays(57), window=20, metrics=size, on_step=told.append)
    assert result.metrics["loss"] == pytest.approx(np.mean([seen.loss for seen in told[-20:]]))
    assert result.metrics["size"] == pytest.approx(np.mean([np.abs(seen.prediction).max() for seen in told[-20:]]))
    assert result.totals["size"] == pytest.approx(np.mean([seen.metrics["size"] for seen in told]))
    assert [record["step"] for record in result.history] == list(range(2, 57, 2))
    assert result.history[14]["loss"] == pytest.approx(np.mean([seen.loss for seen in told[10:30]]))


def test_history_stays_bounded_and_covers_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "MOST", 16)
    history = History.of(["loss"], 10)
    for k in range(100):
        history.add(np.full((7, 1), float(k)))
        assert len(history.points) <= 16
    steps = [point["step"] for point in history.points]
    assert steps == list(range(history.spacing, 701, history.spacing))
    assert history.points[-1]["loss"] > 90 > history.points[0]["loss"]


def test_drift_is_seen_in_the_plot(tmp_path: Path) -> None:
    xs, ys = arrays(300)
    ys = np.where(np.arange(300)[:, None] < 150, ys, -3 * ys)
    result = stream((xs, ys), window=20)
    drawn = result.plot(path=tmp_path / "drift.svg")
    at, values = drawn.axes[0].lines[0].get_data()
    assert max(values[(at > 150) & (at <= 180)]) > 3 * values[at == 150]
    assert drawn.axes[0].get_ylabel() == "loss"
    assert (tmp_path / "drift.svg").exists()
    assert "stopped" not in repr(result)
    assert repr(result).startswith("StreamResult(D_RTRL, 300 steps, loss ")
    assert "<svg" in result._repr_html_()
    with pytest.raises(ValueError, match="There is no metric `error`"):
        result.plot("error")


def test_a_module_goes_on_from_its_states_and_holds_the_end() -> None:
    online = ft.compile(make_net(), "D_RTRL", jnp.ones((1, 2)), batch_size=1)
    xs, ys = arrays(8)
    first = stream((xs[:4, None], ys[:4, None]), online, optax.sgd(0.1))
    assert same(online.params, first.params)
    second = stream((xs[4:, None], ys[4:, None]), online, optax.sgd(0.1))
    whole = stream(
        (xs[:, None], ys[:, None]), ft.compile(make_net(), "D_RTRL", jnp.ones((1, 2)), batch_size=1), optax.sgd(0.1)
    )
    assert close(second.params, whole.params)
    assert isinstance(online.model, brainstate.nn.Module)
    with pytest.raises(TypeError, match="holds its own parameters"):
        stream((xs, ys), online, params=first.params)


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ((np.ones(3), np.ones(1)), r"`x` has the shape \(3,\), and \(2,\) is wanted"),
        ((np.ones(2), np.ones(2)), r"`y` has the shape \(2,\), and \(1,\) is wanted"),
        ((np.array([1.0, np.nan]), np.ones(1)), "`x` holds a NaN or an infinity"),
        ((np.ones(2), np.array([np.inf])), "`y` holds a NaN or an infinity"),
        ((np.ones(2), np.array(["a"])), "arrays of numbers are wanted"),
        ((np.ones(2), np.ones(1), 3.0), "it has a third part, and the rule takes nothing"),
        ((np.ones(2),), "it is a tuple of 1"),
        ((np.ones(2) * 1j, np.ones(1)), "`x` is complex128, and float64 is wanted"),
    ],
)
@pytest.mark.parametrize("piece", [1, 4])
def test_an_item_that_cannot_be_is_named_and_the_rest_counts(item: Any, said: str, piece: int, tmp_path: Path) -> None:
    good = list(zip(*arrays(6), strict=True))
    with pytest.raises(train.StreamError, match=said) as caught:
        stream(iter([*good, item, *good]), piece=piece, folder=tmp_path)
    assert "Item 7: " in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert caught.value.result.steps == 6
    assert caught.value.result.stopped_because == "failed"
    assert same(caught.value.result.params, stream(iter(good), piece=piece).params)
    assert (tmp_path / "checkpoint-00000006.safetensors").exists()


def test_a_source_that_fails_leaves_what_was_learned(tmp_path: Path) -> None:
    def failing() -> Iterator[Any]:
        yield from zip(*arrays(6), strict=True)
        raise ConnectionError("the sensor is gone")

    with pytest.raises(train.StreamError, match=r"after 6 steps\. ConnectionError: the sensor is gone") as caught:
        stream(failing(), piece=4, folder=tmp_path)
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert same(caught.value.result.params, stream(arrays(6), piece=4).params)


@pytest.mark.parametrize("piece", [1, 4])
def test_a_loss_that_is_not_finite_ends_it_with_what_was_good(piece: int, tmp_path: Path) -> None:
    explodes = lambda out, y: jnp.where(y[0] > 5, jnp.nan, loss(out, y))
    xs, ys = arrays(40)
    ys[30] = 9.0
    with pytest.raises(train.DivergedError, match="The loss of step 31 is not finite") as caught:
        stream((xs, ys), loss=explodes, piece=piece, folder=tmp_path)
    result = caught.value.result
    assert result.steps <= 30
    assert (result.stopped_because, result.labelled) == ("not finite", result.steps)
    assert same(result.params, stream((xs[: result.steps], ys[: result.steps]), loss=explodes, piece=piece).params)
    assert train.read(tmp_path / f"checkpoint-{result.steps:08d}.safetensors").note["lines"] == result.steps


def test_an_error_of_the_callback_is_raised_and_the_stream_saved(tmp_path: Path) -> None:
    def fails(seen: train.StreamStep) -> None:
        if seen.number == 3:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        stream(items(), on_step=fails, folder=tmp_path)
    assert (tmp_path / "checkpoint-00000003.safetensors").exists()


def test_it_ends_at_a_limit_or_where_the_callback_says() -> None:
    limited = stream(items(), limit=9, piece=4)
    assert (limited.steps, limited.stopped_because) == (9, "limit")
    told = stream(items(), on_step=lambda seen: seen.number == 5)
    assert (told.steps, told.stopped_because) == (5, "on_step")


async def slowly(count: int, fail: bool = False) -> Any:
    for item in zip(*arrays(count), strict=True):
        await asyncio.sleep(0)
        yield item
    if fail:
        raise ConnectionError("gone")


def test_asynchronous_sources() -> None:
    expected = stream(zip(*arrays(8), strict=True))
    assert same(stream(slowly(8)).state, expected.state)
    settings: dict[str, Any] = dict(loss=loss, progress=False)

    async def inside() -> Any:
        with pytest.raises(RuntimeError, match=r"await train\.stream_async"):
            stream(slowly(8))
        return await train.stream_async(learner(), slowly(8), ADAM, **settings)

    assert same(asyncio.run(inside()).state, expected.state)
    with pytest.raises(train.StreamError, match=r"after 3 steps\. ConnectionError: gone"):
        asyncio.run(train.stream_async(learner(), slowly(3, fail=True), ADAM, **settings))
    with pytest.raises(TypeError, match="has no setting `evry`"):
        asyncio.run(train.stream_async(learner(), slowly(3), ADAM, evry=2))


def test_a_cancelled_task_saves_first(tmp_path: Path) -> None:
    async def endless() -> Any:
        for item in items():
            await asyncio.sleep(0)
            yield item

    async def cancelled() -> None:
        settings: dict[str, Any] = dict(loss=loss, progress=False, folder=tmp_path)
        task = asyncio.create_task(
            train.stream_async(
                learner(), endless(), ADAM, on_step=lambda s: s.number == 4 and task.cancel(), **settings
            )
        )
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    assert max(tmp_path.glob("checkpoint-*.safetensors")).name >= "checkpoint-00000004.safetensors"


posix = pytest.mark.skipif(os.name != "posix", reason="signals are those of POSIX")


@pytest.fixture
def handlers() -> Iterator[None]:
    """The handlers of signals as Python has them, put back afterwards."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    for number, handler in before.items():
        signal.signal(number, handler)


def sending(number: signal.Signals, at: int) -> Iterator[Any]:
    """Items; in the middle of the stream this process gets a signal while its next item is waited for."""
    for k, item in enumerate(items()):
        if k == at:
            os.kill(os.getpid(), number)
        yield item


@posix
@pytest.mark.parametrize("piece", [1, 4])
def test_ctrl_c_ends_it_in_good_order(handlers: None, piece: int, tmp_path: Path) -> None:
    result = stream(sending(signal.SIGINT, 6), piece=piece, folder=tmp_path)
    assert (result.steps, result.stopped_because) == (6, "interrupted")
    assert same(result.params, stream(arrays(6), piece=piece).params)
    assert (tmp_path / "checkpoint-00000006.safetensors").exists()


@posix
def test_sigterm_saves_and_ends_the_program(handlers: None, tmp_path: Path) -> None:
    with pytest.raises(train.Terminated) as caught:
        stream(sending(signal.SIGTERM, 6), folder=tmp_path)
    assert caught.value.code == 128 + signal.SIGTERM
    assert caught.value.result.steps == 6
    assert (tmp_path / "checkpoint-00000006.safetensors").exists()


@posix
@pytest.mark.parametrize("awaited", [False, True])
def test_signals_end_asynchronous_sources_too(handlers: None, awaited: bool, tmp_path: Path) -> None:
    async def endless() -> Any:
        for k, item in enumerate(items()):
            await asyncio.sleep(0)
            if k == 6:
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.sleep(60)
            yield item

    settings: dict[str, Any] = dict(loss=loss, progress=False, folder=tmp_path)
    inside = lambda: asyncio.run(train.stream_async(learner(), endless(), ADAM, **settings))
    with pytest.raises(train.Terminated) as caught:
        inside() if awaited else stream(endless(), folder=tmp_path)
    assert caught.value.result.steps == 6


@pytest.mark.parametrize("every", [1, 4])
def test_resumed_it_is_as_if_never_stopped(every: int, tmp_path: Path) -> None:
    metrics = {"size": lambda out, y: jnp.max(jnp.abs(out))}
    settings: dict[str, Any] = dict(every=every, metrics=metrics, window=20, piece=4)
    whole = stream(items, limit=50, **settings)
    stream(items, limit=22, folder=tmp_path, **settings)
    resumed = stream(items, limit=50, folder=tmp_path, resume=True, **settings)
    assert same(resumed.state, whole.state)
    assert len(resumed.history) == len(whole.history) == 25
    assert all(a == pytest.approx(b, rel=1e-12) for a, b in zip(resumed.history, whole.history, strict=True))
    assert (resumed.steps, resumed.metrics) == (whole.steps, whole.metrics)
    assert resumed.totals == pytest.approx(whole.totals)


def test_arrays_go_on_where_they_stopped(tmp_path: Path) -> None:
    stream(arrays(30), limit=12, folder=tmp_path)
    assert same(stream(arrays(30), folder=tmp_path, resume=True).params, stream(arrays(30)).params)


def test_other_settings_are_refused(tmp_path: Path) -> None:
    stream(arrays(6), folder=tmp_path)
    with pytest.raises(FileExistsError, match="resume=True"):
        stream(arrays(6), folder=tmp_path)
    others: list[tuple[dict[str, Any], str]] = [
        (dict(every=2), "`every` = 1"),
        (dict(window=7), "`window` = 1000"),
        (dict(optimizer=optax.sgd(0.1)), "another `optimizer`"),
        (dict(by=learner("pp_prop", decay_or_rank=0.9)), "`rule`"),
        (dict(loss=lambda out, y: jnp.sum(jnp.abs(out - y))), "another loss"),
    ]
    for given, said in others:
        with pytest.raises(train.CheckpointError, match=said):
            stream(arrays(12), folder=tmp_path, resume=True, **given)
    assert stream(arrays(12), folder=tmp_path, resume=True).steps == 12


def test_checkpoints_are_written_by_time(tmp_path: Path) -> None:
    seen: list[int] = []
    count = lambda step: seen.append(len(list((tmp_path / "often").glob("checkpoint-*"))))
    stream(arrays(16), piece=4, folder=tmp_path / "often", checkpoint_every=1e-9, keep=10, on_step=count)
    assert len(list((tmp_path / "often").glob("checkpoint-*"))) == 5  # before the first piece, and after each
    stream(arrays(8), piece=4, folder=tmp_path / "seldom", checkpoint_every=1e9, keep=10)
    assert len(list((tmp_path / "seldom").glob("checkpoint-*"))) == 2
    assert max(seen) == 4


def test_what_cannot_be_is_refused() -> None:
    for rule, options in (("BPTT", {}), ("D_RTRL", {"window": 4})):
        with pytest.raises(ValueError, match="goes back through steps that are gone"):
            stream(arrays(4), learner(rule, **options))
    with pytest.raises(TypeError, match="takes a learner"):
        train.stream(print, arrays(4), optax.sgd(0.1))
    with pytest.raises(TypeError, match="an iterable of items"):
        stream(7)
    with pytest.raises(ValueError, match="time first and of one length"):
        stream((np.ones((4, 3)), np.ones((4, 1))))
    with pytest.raises(ValueError, match="`every` is a number of steps from 1 on"):
        stream(arrays(4), every=0)
    with pytest.raises(ValueError, match="named `loss`"):
        stream(arrays(4), metrics={"loss": loss})
    with pytest.raises(ValueError, match="say which with `folder=`"):
        stream(arrays(4), resume=True)


def test_a_loss_may_read_the_parameters() -> None:
    decayed = lambda out, y, params: loss(out, y) + 0.1 * jnp.sum(params["w_rec"] ** 2)
    xs, ys = arrays(6)
    params, *_ = learner().train(make_params(), learner().init(), xs, ys, loss=decayed, optimizer=ADAM, update_every=1)
    assert close(stream((xs, ys), loss=decayed).params, params)


def test_arrays_alive_do_not_grow() -> None:
    alive: list[int] = []
    note = lambda seen: alive.append(len(jax.live_arrays())) if seen.number % 50 == 0 else None
    stream(items(), piece=4, limit=600, on_step=note)
    assert len(set(alive[1:])) == 1


def test_arrays_that_were_given_are_not_written_over() -> None:
    noisy = lambda params, state, x: (
        {"h": 0.5 * state["h"] + x @ params["w"], **noise(state)},
        state["h"] + state["k"],
    )
    noise = lambda state: {"k": state["k"], "key": jax.random.split(state["key"])[0]}
    zeros, key, w = jnp.zeros(3), jax.random.key(0), jnp.ones((2, 3))  # one array in two places, and a key
    state = {"h": zeros, "k": zeros, "key": key}
    by = ft.compile(noisy, "D_RTRL", jnp.ones(2), params={"w": w}, state=state)
    xs, _ = arrays(5)
    ends = [stream((xs, xs[:, :1]), by, state=state, piece=1, params={"w": w}) for _ in range(2)]
    assert same(ends[0].params, ends[1].params)
    assert not any(leaf.is_deleted() for leaf in (zeros, key, w, *jax.tree.leaves((by.params, by.carry))))


def test_written_over_or_kept_the_states_are_the_same() -> None:
    xs, ys = arrays(30)
    over, kept = stream((xs, ys), piece=1), stream((xs, ys), piece=1, on_step=lambda step: None)
    assert same(over.state, kept.state)
