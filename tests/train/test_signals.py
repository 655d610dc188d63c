"""Signals end a run in good order, in the main thread alone, and are afterwards what they were before."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from foretrace import train
from foretrace.train.signals import WATCHED, Signals, ctrl_c_heard
from train.small_task import fit

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals are those of POSIX")


@pytest.fixture
def handlers() -> Iterator[dict[Any, Any]]:
    """The handlers of signals, which are put back afterwards; by default as Python has them."""
    before = {number: signal.getsignal(number) for number in WATCHED}
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield {number: signal.getsignal(number) for number in WATCHED}
    for number, handler in before.items():
        signal.signal(number, handler)


def now() -> dict[Any, Any]:
    return {number: signal.getsignal(number) for number in WATCHED}


def sending(number: signal.Signals) -> Any:
    """A goal that sends this process a signal at the second validation, and is never reached."""
    seen: list[Any] = []

    def goal(metrics: Any) -> bool:
        seen.append(metrics)
        if len(seen) == 2:
            os.kill(os.getpid(), number)
        return False

    return goal


def test_sigterm_ends_the_program_once_the_run_is_saved(handlers: Any, tmp_path: Path) -> None:
    with pytest.raises(train.Terminated) as caught:
        fit(iterations=9, folder=tmp_path, validate_every=1, stop=sending(signal.SIGTERM))
    assert caught.value.code == 128 + signal.SIGTERM
    assert caught.value.signal is signal.SIGTERM
    result = caught.value.result
    assert (result.stopped_because, result.iterations, len(result.metrics)) == ("interrupted", 2, 2)
    assert (tmp_path / "checkpoint-00000002.safetensors").exists()
    assert now() == handlers


def test_ctrl_c_returns_the_run(handlers: Any, tmp_path: Path) -> None:
    result = fit(iterations=9, folder=tmp_path, validate_every=1, stop=sending(signal.SIGINT))
    assert (result.stopped_because, result.iterations) == ("interrupted", 2)
    assert now() == handlers


def test_where_it_is_saved_is_said(handlers: Any, tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        fit(iterations=9, folder=tmp_path, validate_every=1, stop=sending(signal.SIGHUP), progress=True)
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == f"2 iterations: interrupted by SIGHUP; it is saved in `{tmp_path}`"


def test_handlers_of_the_program_are_left_to_it(handlers: Any, tmp_path: Path) -> None:
    heard: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does
    result = fit(iterations=3, folder=tmp_path, validate_every=1, stop=sending(signal.SIGTERM))
    assert (heard, result.stopped_because) == ([signal.SIGTERM], "iterations")
    signals = Signals()
    with signals.watched():
        os.kill(os.getpid(), signal.SIGHUP)
    assert signals.arrived is None


def test_other_threads_leave_signals_alone(handlers: Any) -> None:
    found: list[Any] = []

    def look() -> None:
        with Signals().watched():
            found.append(now())

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [handlers]


def test_signal_waits_until_it_may_break_something(handlers: Any) -> None:
    signals = Signals()
    with signals.watched():
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGHUP)
        assert signals.arrived is signal.SIGTERM
        with pytest.raises(KeyboardInterrupt), signals.breaking():
            raise AssertionError
    with signals.watched(), pytest.raises(KeyboardInterrupt), signals.breaking():
        raise AssertionError


def test_signal_breaks_off_a_computation_once(handlers: Any) -> None:
    signals = Signals()
    with signals.watched():
        with pytest.raises(KeyboardInterrupt), signals.breaking():
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # while the run is saved


def test_ctrl_c_that_a_shell_turned_off_is_heard(handlers: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with ctrl_c_heard(), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
