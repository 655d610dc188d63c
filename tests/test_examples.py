"""Every example runs on its own, without a warning, and prints what it is there to show."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
TRAINING = ("train_function", "train_module", "online_updates")
FRAMEWORKS = ("flax_nnx", "flax_linen", "equinox_module")
REPORTS = ("own_operator", "plain_function", "spiking_module", *TRAINING)

slow = [pytest.param(name, marks=pytest.mark.slow) for name in FRAMEWORKS]

_printed: dict[str, str] = {}


def run(name: str, **environment: str) -> str:
    """What an example prints; each is run once."""
    if name not in _printed:
        command = [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
        assert done.returncode == 0, done.stderr
        _printed[name] = done.stdout
    return _printed[name]


def numbers(printed: str, pattern: str) -> list[float]:
    return [float(found) for found in re.findall(pattern, printed, re.MULTILINE)]


@pytest.mark.parametrize("folder", [EXAMPLES, EXAMPLES / "from_braintrace"], ids=lambda folder: folder.name)
def test_page_lists_every_example_by_its_first_line(folder: Path) -> None:
    page = (EXAMPLES.parent / "docs" / "examples.md").read_text()
    first = {path.name: path.read_text().splitlines()[0].strip('"') for path in folder.glob("*.py")}
    rows = [f"| `{name}` | {line} |" for name, line in first.items()]
    assert [row for row in rows if row not in page] == []


def test_page_lists_no_other_example() -> None:
    page = (EXAMPLES.parent / "docs" / "examples.md").read_text()
    assert set(re.findall(r"^\| `(.+?\.py)` \|", page, re.MULTILINE)) == {path.name for path in EXAMPLES.rglob("*.py")}


def test_every_example_is_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {
        *REPORTS,
        *FRAMEWORKS,
        "compare_rules",
        "connectome",
        "many_devices",
        "own_task",
        "pictures",
        "resume",
        "river_stream",
        "stream",
        "streaming_agent",
    }


@pytest.mark.parametrize("name", [*REPORTS, *slow])
def test_example_prints_a_report(name: str) -> None:
    printed = run(name)
    assert "history keeps" in printed
    assert "no warnings" in printed


@pytest.mark.parametrize("name", ["train_function", "train_module", *slow])
def test_loss_halves(name: str) -> None:
    losses = numbers(run(name), r"^ *\d+(?: to +\d+)?  (\d\.\d{4})$")
    assert losses[-1] < losses[0] / 2


def test_online_updates_follow_a_change_of_the_signal() -> None:
    for signal in ("slow", "fast"):
        losses = numbers(run("online_updates"), rf"(\d\.\d{{4}})  {signal}$")
        assert losses[-1] < losses[0] / 2


@pytest.mark.slow
def test_exact_rule_has_cosine_one() -> None:
    cosines = dict(re.findall(r"^(\w+) +(-?\d\.\d{3})", run("compare_rules"), re.MULTILINE))
    assert cosines["RTRL"] == "1.000"
    assert 0.9 < float(cosines["D_RTRL"]) < 1


@pytest.mark.slow
def test_own_task_is_learned() -> None:
    assert run("own_task").endswith("stopped: goal\n")
    assert numbers(run("own_task"), r"(\d\.\d\d)$")[-1] > 0.95


@pytest.mark.slow
def test_resumed_run_ends_with_the_same_weights() -> None:
    assert "records of iterations: 30" in run("resume")
    assert run("resume").endswith("equal bit for bit: True\n")


@pytest.mark.slow
def test_network_beats_the_linear_model_where_the_past_tells_more() -> None:
    errors = numbers(run("river_stream"), r"samples  (\d\.\d{4})$")
    assert len(errors) == 6  # three for each model
    assert errors[5] < errors[2]
    assert "history keeps" in run("river_stream")


@pytest.mark.slow
def test_pictures_are_where_the_example_says() -> None:
    written = [Path(line) for line in run("pictures").splitlines()]
    assert [path.stem for path in written] == ["agreement", "learning", "memory", "spikes", "traces"]
    assert all(path.read_text().startswith("<?xml") for path in written)


def test_stream_sees_the_change_and_goes_on() -> None:
    printed = run("stream")
    calm, changed, learned = numbers(printed, r"loss (\d\.\d{4})$")
    assert changed > 3 * calm
    assert learned < changed / 2
    assert "6000 steps, goes on after 6000: 6500" in printed


def test_devices_share_the_batch_and_give_the_same_gradient() -> None:
    printed = run("many_devices", XLA_FLAGS="--xla_force_host_platform_device_count=4")
    assert "4 devices" in printed
    assert "'data'" in printed
    assert "the same gradient" in printed


@pytest.mark.slow
def test_agent_remembers_where_the_whole_episode_is_credited() -> None:
    whole = numbers(run("streaming_agent"), r"^whole episode.* (\d\.\d\d) at last$")
    one = numbers(run("streaming_agent"), r"^one step.* (\d\.\d\d) at last$")
    # A seed in four or so learns early on never to walk to the end: the middle one of three counts.
    assert sorted(whole)[1] > 0.8
    assert sorted(whole)[1] > max(one)


@pytest.mark.slow
def test_synapses_learn_what_the_regions_of_a_teacher_do() -> None:
    before, after = numbers(run("connectome"), r"teacher: (-?\d\.\d{3}) (?:before|after)$")
    assert after > before + 0.1
