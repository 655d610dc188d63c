"""The notebooks: each runs from top to bottom in a kernel of its own, without an error or a warning."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="notebooks are run with the extra `test`")
nbclient = pytest.importorskip("nbclient", reason="notebooks are run with the extra `test`")

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
QUICK = "first_steps"
WIDE = 88  # columns of code, as on the pages

every = pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[] if path.stem == QUICK else [pytest.mark.slow]) for path in NOTEBOOKS],
)
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def executed(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A notebook with the outputs of a fresh kernel, in single precision, which is a reader's."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")  # what kernels and their libraries say about themselves
    monkeypatch.delenv("JAX_ENABLE_X64", raising=False)
    notebook = nbformat.read(path, as_version=4)
    runner = nbclient.NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(folder)}})
    own = runner.create_kernel_manager()
    own.kernel_spec.argv[0] = sys.executable
    runner.execute()
    return notebook


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


@every
@pytest.mark.filterwarnings("ignore")
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        found = outputs(executed(path, tmp_path, monkeypatch))
    finally:
        asyncio.set_event_loop(None)
    assert [output for output in found if output.output_type == "error" or output.get("name") == "stderr"] == []
    assert any("text/html" in output.get("data", {}) for output in found)


def test_there_are_five_and_one_is_quick() -> None:
    assert len(NOTEBOOKS) == 5
    assert QUICK in [path.stem for path in NOTEBOOKS]


@each
def test_notebook_is_kept_without_outputs_and_narrow(path: Path) -> None:
    cells = json.loads(path.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert [line for cell in code for line in "".join(cell["source"]).splitlines() if len(line) > WIDE] == []


@each
def test_page_lists_the_notebook_by_its_title(path: Path) -> None:
    title = "".join(json.loads(path.read_text())["cells"][0]["source"]).splitlines()[0].removeprefix("# ")
    assert f"| `notebooks/{path.name}` | {title} |" in (ROOT / "docs" / "examples.md").read_text()
