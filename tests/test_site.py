"""The built pages: what a reader of the site sees of every public name, and that the pages need no network.

The site is built once, into a folder of its own. What Python says about a name is held against what its page shows.
"""

import html
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import foretrace as ft
from foretrace import compat, rl, tasks, train, viz

for tool in ("mkdocs", "material", "mkdocstrings", "latex2mathml"):
    pytest.importorskip(tool, reason="the pages are built with the extra `docs`")

ROOT = Path(__file__).parent.parent
HEADING = re.compile(r'<h2 id="([^"]+)" class="doc doc-heading">')
SIGNATURE = re.compile(r'<div class="doc-signature highlight">.*?<code>(.*?)</code></pre>', re.DOTALL)
DESCRIPTION = re.compile(r"<p>(?!<span class=\"doc-section-title)(.*?)</p>", re.DOTALL)
ROW = re.compile(r'<tr class="doc-section-item">\s*<td>\s*<code>(.*?)</code>', re.DOTALL)


@dataclass(frozen=True)
class Entry:
    """What a page shows of one name, without its members: the signature, the first paragraph, names in tables."""

    signature: str | None
    description: str
    described: frozenset[str]
    text: str


def words(markup: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", markup)).strip()


def entry(section: str) -> Entry:
    own = section.split('<div class="doc doc-children">')[0]
    signature, description = SIGNATURE.search(own), DESCRIPTION.search(own)
    return Entry(
        words(signature[1]) if signature else None,
        words(description[1]) if description else "",
        frozenset(words(name).lstrip("*") for name in ROW.findall(own)),
        words(own),
    )


def entries(page: str) -> dict[str, Entry]:
    """The names of a page of the reference."""
    pieces = HEADING.split(page)
    return {name: entry(section) for name, section in zip(pieces[1::2], pieces[2::2], strict=True)}


def parameters(value: Any) -> list[str]:
    """What a function or a class of ours is called with; those that brainstate's classes take are brainstate's."""
    if inspect.isclass(value):
        if hasattr(value, "_fields") or isinstance(vars(value).get("__signature__"), inspect.Signature):
            return []
        value = value.__init__
    if not inspect.isfunction(value) or not value.__module__.startswith("foretrace"):
        return []
    return [name for name in inspect.signature(value).parameters if name != "self" and not name.startswith("_")]


def resolved(name: str, reference: dict[str, Entry]) -> Entry:
    """The entry of a name; of `other = name`, that of the name it stands for."""
    found = reference[name]
    same = re.match(r"^\w+ = (\w+)$", found.signature or "")
    if same is None:
        return found
    return next(other for path, other in reference.items() if path.split(".")[-1] == same[1])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def reference(site: Path) -> dict[str, Entry]:
    pages = sorted((site / "reference").rglob("*.html"))
    return {name: found for page in pages for name, found in entries(page.read_text()).items()}


def public_names() -> set[str]:
    """The names of the package and its parts, without the parts themselves."""
    names = {part: part.__all__ for part in (ft, rl, tasks, train, viz)}
    names[compat] = [name for name in compat.__all__ if name not in ft.__all__]
    return {
        f"{part.__name__}.{name}"
        for part, listed in names.items()
        for name in listed
        if not inspect.ismodule(getattr(part, name))
    }


def test_every_public_name_has_an_entry_with_a_description(reference: dict[str, Entry]) -> None:
    shown = {name.replace("train.fit.fit", "train.fit") for name in reference}
    assert public_names() - shown == set()
    assert [name for name, found in reference.items() if not found.description] == []


def test_every_callable_shows_how_it_is_called(reference: dict[str, Entry]) -> None:
    hidden = {}
    for name in reference:
        shown, wanted = resolved(name, reference).signature, parameters(pkgutil.resolve_name(name))
        if wanted and not set(wanted) <= set(re.findall(r"\w+", shown or "")):
            hidden[name] = shown
    assert hidden == {}


def test_every_parameter_is_described(reference: dict[str, Entry]) -> None:
    described = {name.split(".")[-1]: found.described for name, found in reference.items()}
    missing = {}
    for name in reference:
        found = resolved(name, reference)
        same = re.search(r"arguments are those of (\w+)\.", found.text)
        known = found.described | (described.get(same[1], frozenset()) if same else frozenset())
        if absent := [word for word in parameters(pkgutil.resolve_name(name)) if word not in known]:
            missing[name] = absent
    assert missing == {}


def test_pages_work_without_a_network(site: Path) -> None:
    loads = re.compile(r'<(?:script|link|img|iframe|source)\b[^>]*(?:src|href)="((?:https?:)?//[^"]*)"')
    of_style = re.compile(r"(?:url\(|@import\s*)[\"']?((?:https?:)?//[^\"')]*)")
    asked = {found for page in site.rglob("*.html") for found in loads.findall(page.read_text())}
    asked |= {found for sheet in site.rglob("*.css") for found in of_style.findall(sheet.read_text())}
    assert asked == set()
    assert (site / "search" / "search_index.js").exists()  # what search reads where pages are opened from disk


def test_formulas_are_set_by_the_browser(site: Path) -> None:
    written = (ROOT / "docs" / "concepts.md").read_text().count("```math")
    page = (site / "concepts.html").read_text()
    assert page.count('<div class="formula"><math') == written > 0
    assert "merror" not in page


def test_pages_follow_the_colours_of_the_system(site: Path) -> None:
    medium = re.compile(r'data-md-color-media="([^"]*)"')
    found = medium.findall((site / "index.html").read_text())
    assert found[0] == "(prefers-color-scheme)"  # asked anew at every visit; without it the first answer is kept
    assert {"(prefers-color-scheme: light)", "(prefers-color-scheme: dark)"} <= set(found)
