"""The pages are true: their Python runs, prints what they show, and the commands they name exist.

Each page is one session, run from top to bottom in float32, JAX's default and the reader's. A `text` fence right
after a `python` fence is what that code prints. `python tests/test_docs.py` writes the present outputs into the pages.
"""

import contextlib
import io
import itertools
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import brainstate
import jax
import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
FENCE = re.compile(r"^```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
MOST_COLUMNS = 88
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#]+)")

per_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@dataclass(frozen=True)
class Snippet:
    """A fence of Python: its text, its first line in the page, and where in the page its output is shown, if at all."""

    text: str
    line: int
    output: slice | None


def snippets(markdown: str) -> list[Snippet]:
    """The Python fences of a page, in order."""
    fences = list(FENCE.finditer(markdown))
    found = []
    for fence, after in itertools.zip_longest(fences, fences[1:]):
        if fence["language"] != "python":
            continue
        shown = after and after["language"] == "text" and not markdown[fence.end() : after.start()].strip()
        output = slice(after.start("text"), after.end("text")) if after and shown else None
        found.append(Snippet(fence["text"], markdown.count("\n", 0, fence.start("text")), output))
    return found


def run(snippet: Snippet, name: str, session: dict[str, Any]) -> str:
    """Runs one fence in its page's session, so that a traceback names the page's own lines; returns what it prints."""
    printed = io.StringIO()
    code = compile("\n" * snippet.line + snippet.text, name, "exec")
    single = brainstate.environ.context(precision=32)  # brainstate makes parameters and states by its own setting
    with single, jax.enable_x64(False), contextlib.redirect_stdout(printed):
        exec(code, session)
    return "".join(f"{line.rstrip()}\n" for line in printed.getvalue().rstrip().splitlines())


def with_outputs(markdown: str, name: str) -> str:
    """The page with every shown output replaced by what its code prints."""
    session: dict[str, Any] = {"__name__": "__main__"}
    pieces, place = [], 0
    for snippet in snippets(markdown):
        printed = run(snippet, name, session)
        if snippet.output is not None:
            pieces += [markdown[place : snippet.output.start], printed]
            place = snippet.output.stop
    return "".join([*pieces, markdown[place:]])


def targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def commands(markdown: str) -> set[str]:
    """The make targets that a page names, in shell fences or in line."""
    shell = "\n".join(fence["text"] for fence in FENCE.finditer(markdown) if fence["language"] in ("bash", "console"))
    return set(re.findall(r"^(?:\$ )?make ([a-z-]+)", shell, re.MULTILINE)) | set(
        re.findall(r"`make ([a-z-]+)", markdown)
    )


@per_page
def test_page_runs_and_prints_what_it_shows(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    markdown = page.read_text()
    assert with_outputs(markdown, page.name) == markdown


def test_code_is_narrow_enough_for_the_pages() -> None:
    pages = [page for page in PAGES if page.parent != ROOT]
    fences = [fence for page in pages for fence in FENCE.finditer(page.read_text())]
    code = [fence["text"] for fence in fences if fence["language"] in ("python", "bash")]
    assert [line for text in code for line in text.splitlines() if len(line) > MOST_COLUMNS] == []


@per_page
def test_page_names_targets_that_exist(page: Path) -> None:
    assert commands(page.read_text()) <= targets()


@per_page
def test_page_links_to_files_that_exist(page: Path) -> None:
    assert [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()] == []


def test_extras_are_quoted_since_some_shells_read_brackets() -> None:
    sources = [
        *PAGES,
        *(ROOT / "foretrace").rglob("*.py"),
        *(ROOT / "examples").rglob("*.py"),
        *(ROOT / "examples").rglob("*.ipynb"),
    ]
    bare = re.compile(r"pip install (?:-\S+ )*[^\s'\"`]*\[\w")
    assert bare.search("pip install -e .[train]")
    assert [path.name for path in sources if bare.search(path.read_text())] == []


def test_wrong_output_is_seen() -> None:
    page = "```python\nx = 1\n```\n\n```python\nprint(x + 1)\n```\n\n```text\n3\n```\n"
    assert with_outputs(page, "page") == page.replace("3\n", "2\n")


def test_failing_code_names_the_line_of_the_page() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        with_outputs("words\n\n```python\nx = 1\nx / 0\n```\n", "page")
    assert caught.traceback[-1].lineno + 1 == 5


def test_commands_are_found_in_fences_and_in_line() -> None:
    page = "`make docs`\n\n```bash\nmake demo\n```\n\n```console\n$ make test\n```\n\nwe make nothing\n"
    assert commands(page) == {"demo", "test", "docs"}


if __name__ == "__main__":
    os.chdir(tempfile.mkdtemp())  # what the pages write is not wanted here
    for path in PAGES:
        path.write_text(with_outputs(path.read_text(), path.name))
