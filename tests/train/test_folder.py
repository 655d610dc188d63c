"""The folder of a run: resumed where it stopped, refused where it is another run's, and safe from damage."""

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

from foretrace import train
from foretrace.train.checkpoint import CheckpointError, CheckpointWarning, read
from foretrace.train.folder import Folder
from foretrace.train.lock import LOCK
from train.small_task import RunningSum, by_bptt, fit, make_learner, make_net, make_params

SETTINGS: dict[str, Any] = dict(checkpoint_every=2, keep=2, stream=True, update_every=6)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: Any) -> Any:
    """A run of six iterations in a folder, and what it returned."""
    folder = tmp_path_factory.mktemp("finished")
    return folder, fit(iterations=6, folder=folder, **SETTINGS)


@pytest.fixture
def folder(finished: Any, tmp_path: Path) -> Path:
    """A copy of that folder."""
    return Path(shutil.copytree(finished[0], tmp_path / "run"))


def equal(first: Any, second: Any) -> bool:
    plain = lambda leaf: jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all(np.asarray(plain(a)).tobytes() == np.asarray(plain(b)).tobytes() for a, b in pairs)


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir() if file.name != LOCK)


def test_last_checkpoints_and_metrics_are_kept(finished: Any) -> None:
    folder, result = finished
    assert names(folder) == ["checkpoint-00000004.safetensors", "checkpoint-00000006.safetensors", "metrics.jsonl"]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert lines == result.metrics


def test_checkpoint_holds_every_part(finished: Any) -> None:
    folder, result = finished
    found = read(folder / "checkpoint-00000006.safetensors")
    assert equal(train.TrainState(**found.fill(result.state._asdict())), result.state)
    parts = {name.split("/")[0] for name in found.arrays}
    assert parts == {"params", "opt_state", "key", "iteration", "carry"}
    assert any(name.startswith("carry/trace") for name in found.arrays)


@pytest.mark.parametrize("damage", ["truncated", "empty", "changed"])
def test_damaged_checkpoint_is_passed_over(finished: Any, folder: Path, damage: str) -> None:
    last = folder / "checkpoint-00000006.safetensors"
    data = last.read_bytes()
    wrong = bytes([data[-1] ^ 255])
    last.write_bytes({"truncated": data[: len(data) // 2], "empty": b"", "changed": data[:-1] + wrong}[damage])
    with pytest.warns(CheckpointWarning, match="00000006.*not a whole checkpoint.*goes on from `checkpoint-00000004"):
        found = Folder(folder).latest()
    assert found is not None
    assert found.note["lines"] == 4


def test_newest_checkpoint_that_is_missing_is_not_missed(folder: Path) -> None:
    (folder / "checkpoint-00000006.safetensors").unlink()
    found = Folder(folder).latest()
    assert found is not None
    assert found.note["lines"] == 4


def test_resumed_run_is_the_whole_run(finished: Any, folder: Path) -> None:
    (folder / "checkpoint-00000006.safetensors").write_bytes(b"half of it")
    with pytest.warns(CheckpointWarning):
        resumed = fit(iterations=6, folder=folder, resume=True, **SETTINGS)
    assert equal(resumed.state, finished[1].state)
    assert [r["loss"] for r in resumed.metrics] == [r["loss"] for r in finished[1].metrics]
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 6


def test_no_whole_checkpoint_at_all(folder: Path) -> None:
    for file in folder.glob("checkpoint-*"):
        file.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"No checkpoint in .* is whole.* Name another folder"):
        fit(iterations=6, folder=folder, resume=True, **SETTINGS)
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 6  # nothing was lost by the attempt


def test_half_written_files_and_lines_are_cleared(folder: Path) -> None:
    (folder / ".checkpoint-00000008.safetensors.123.part").write_bytes(b"half")
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"iteration": 7, "lo')
    with Folder(folder).opened():
        assert len(Folder(folder).cut_metrics(6)) == 6
    assert len(names(folder)) == 3
    assert (folder / "metrics.jsonl").read_text().endswith("}\n")


def test_lost_metrics_are_told(folder: Path) -> None:
    (folder / "metrics.jsonl").unlink()
    with pytest.warns(CheckpointWarning, match="0 of the 6 lines"):
        assert Folder(folder).cut_metrics(6) == []


def test_metrics_are_plain_json(tmp_path: Path) -> None:
    metrics = Folder(tmp_path).open_metrics()
    metrics.append({"iteration": 1, "loss": float("nan"), "error": float("inf")})
    metrics.close()
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"iteration": 1, "loss": None, "error": None}


def test_finished_run_returns_at_once(finished: Any, folder: Path) -> None:
    again = fit(iterations=6, folder=folder, resume=True, **SETTINGS)
    assert equal(again.state, finished[1].state)
    assert again.metrics == finished[1].metrics


@pytest.mark.parametrize("damage", ["a bit", "no record", "another iteration", "last line"])
def test_damaged_line_of_metrics_is_set_aside(finished: Any, folder: Path, damage: str) -> None:
    file = folder / "metrics.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    place = 5 if damage == "last line" else 2
    if damage == "a bit":
        lines[place] = bytes([lines[place][0] ^ 0x80]) + lines[place][1:]
    else:
        lines[place] = {"no record": b"[3]\n", "another iteration": b'{"iteration": 77, "loss": 1.0}\n'}.get(
            damage, b'{"iteration": 6, "lo\x00s": \n'
        )
    file.write_bytes(b"".join(lines))
    with pytest.warns(CheckpointWarning, match=rf"`.*metrics.jsonl` is damaged in line {place + 1}: put into"):
        resumed = fit(iterations=6, folder=folder, resume=True, **SETTINGS)
    assert equal(resumed.state, finished[1].state)
    assert len(resumed.metrics) == 5
    assert (folder / "metrics.jsonl.damaged").read_bytes().strip() in b"".join(lines)
    assert [json.loads(line) for line in file.read_bytes().splitlines()] == resumed.metrics


def test_lost_end_of_a_line_costs_two(folder: Path) -> None:
    file = folder / "metrics.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:2], lines[2][:-1] + b"!", *lines[3:]]))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert [record["iteration"] for record in Folder(folder).cut_metrics(6)] == [1, 2, 5, 6]
    assert ["damaged in line 3" in str(one.message) for one in told] == [True, False]
    assert "4 of the 6 lines" in str(told[1].message)


def test_run_goes_on_after_metrics_were_lost(finished: Any, folder: Path) -> None:
    (folder / "metrics.jsonl").unlink()
    with pytest.warns(CheckpointWarning, match="0 of the 6 lines"):
        assert [r["iteration"] for r in fit(iterations=8, folder=folder, resume=True, **SETTINGS).metrics] == [7, 8]
    with pytest.warns(CheckpointWarning, match="2 of the 8 lines"):
        assert len(fit(iterations=8, folder=folder, resume=True, **SETTINGS).metrics) == 2


@pytest.mark.parametrize("keep", [1, 2])
def test_damaged_checkpoint_does_not_count_as_one_to_keep(folder: Path, keep: int) -> None:
    last = folder / "checkpoint-00000006.safetensors"
    last.write_bytes(b"half")
    options = {**SETTINGS, "keep": keep, "checkpoint_every": 1}
    with pytest.warns(CheckpointWarning, match="00000006"):
        fit(iterations=5, folder=folder, resume=True, **options)
    whole = [f"checkpoint-0000000{number}.safetensors" for number in range(6 - keep, 6)]
    assert [name for name in names(folder) if name.startswith("checkpoint")] == [*whole, f"{last.name}.damaged"]
    assert fit(iterations=6, folder=folder, resume=True, **options).iterations == 6


def test_refused_run_is_left_as_it_is(folder: Path) -> None:
    (folder / "checkpoint-00000006.safetensors").write_bytes(b"half")
    before = names(folder)
    with pytest.warns(CheckpointWarning), pytest.raises(CheckpointError, match="`seed`"):
        fit(iterations=7, folder=folder, resume=True, seed=5, **SETTINGS)
    assert names(folder) == before


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("left", ["metrics.jsonl", "best.safetensors", "result.json"])
def test_remains_of_a_run_are_not_replaced(tmp_path: Path, left: str, resume: bool) -> None:
    (tmp_path / left).write_text("precious")
    said = f"has {left} of a run, but no checkpoint to go on from.*move it away, or name another folder"
    with pytest.raises(FileExistsError, match=said):
        fit(iterations=1, folder=tmp_path, resume=resume)
    assert names(tmp_path) == [left]
    assert (tmp_path / left).read_text() == "precious"


def test_run_killed_before_its_first_checkpoint_can_begin_again(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    assert fit(iterations=1, folder=tmp_path, resume=True).iterations == 1


def test_files_of_a_run_replace_links(tmp_path: Path) -> None:
    precious, folder = tmp_path / "precious", tmp_path / "run"
    precious.write_text("precious")
    fit(iterations=1, folder=folder)
    for name in ("metrics.jsonl", "best.safetensors", "checkpoint-00000002.safetensors"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(precious)
    with pytest.warns(CheckpointWarning):
        fit(iterations=2, folder=folder, resume=True, validate_every=1)
    assert precious.read_text() == "precious"
    assert not (folder / "best.safetensors").is_symlink()


def test_error_of_another_kind_leaves_what_was_done(tmp_path: Path) -> None:
    def broken(metrics: Any) -> bool:
        raise KeyError("wrong")

    with pytest.raises(KeyError, match="wrong"):
        fit(iterations=9, folder=tmp_path, validate_every=3, stop=broken)
    assert fit(iterations=3, folder=tmp_path, resume=True).metrics[-1]["iteration"] == 3
    assert max(names(tmp_path)[:-1]) == "checkpoint-00000003.safetensors"


def test_run_is_not_overwritten(folder: Path) -> None:
    with pytest.raises(FileExistsError, match="resume=True"):
        fit(iterations=6, folder=folder, **SETTINGS)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": 1}, r"`seed` = 0 \(now 1\)"),
        ({"update_every": 4}, r"`update_every` = 6 \(now 4\)"),
        ({"clip": 1.0}, r"another `optimizer`, `clip` = None \(now 1.0\)"),
        ({"optimizer": optax.adam(2e-2)}, "another `optimizer`"),
        ({"task": RunningSum(scale=0.6)}, "another `task` of the same name"),
        ({"task": RunningSum(name="other")}, "`task` = 'running sum .*now 'other"),
        ({"learner": make_learner("pp_prop", decay_or_rank=0.9)}, "`rule` = 'D_RTRL.*now 'pp_prop"),
        ({"learner": make_learner("BPTT"), "params": make_params()}, "`rule`"),
    ],
)
def test_other_settings_are_named(folder: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError, match=f"was made with .*{said}"):
        fit(iterations=8, folder=folder, resume=True, **{**SETTINGS, **change})


def test_resumed_module_is_the_whole_run(tmp_path: Path) -> None:
    options: dict[str, Any] = dict(checkpoint_every=2, keep=9)
    whole = fit(by_bptt(), iterations=4, folder=tmp_path, **options)
    for number in (3, 4):
        (tmp_path / f"checkpoint-0000000{number}.safetensors").unlink(missing_ok=True)
    net = make_net()
    resumed = fit(by_bptt(net), iterations=4, folder=tmp_path, resume=True, **options)
    assert equal(resumed.state, whole.state)
    assert equal(net.readout.weight.value, resumed.params[("readout", "weight")])


def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"Cannot write .*Name a folder that can be written"):
        fit(iterations=1, folder=tmp_path / "file" / "run")


def test_resume_begins_where_there_is_nothing(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(iterations=1, folder=tmp_path / "new" / "run", resume=True)
    assert names(tmp_path / "new" / "run")[0] == "checkpoint-00000000.safetensors"
