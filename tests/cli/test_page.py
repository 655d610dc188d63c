"""The page of a model: well-formed, whole, escaped, and without anything from elsewhere."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from cli.chromium import BROWSER, Chromium
from foretrace.cli import main, page
from foretrace.cli.page import inline_svg

MODELS = Path(__file__).parent / "models.py"
EMPTY = {"meta", "link", "br"}


class Page(HTMLParser):
    """A page that was read: its text, its tags, its attributes, and whether every tag is closed in order."""

    def __init__(self, markup):
        super().__init__(convert_charrefs=True)
        self.words, self.tags, self.attributes, self.open, self.wrong = [], [], [], [], []
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attributes]
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return "".join(self.words)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """The page of a step with names that HTML would take for its own."""
    file = tmp_path_factory.mktemp("page") / "page.html"
    assert main(["inspect", f"{MODELS}:make", "--html", str(file)]) == 0
    return file


@pytest.fixture(scope="module")
def markup(file):
    return file.read_text(encoding="utf-8")


def test_page_is_well_formed(markup):
    read = Page(markup)
    assert markup.startswith("<!DOCTYPE html>")
    assert read.wrong == []
    assert read.open == []


def test_nothing_comes_from_elsewhere(markup):
    read = Page(markup)
    assert not {"script", "img", "iframe", "object", "embed", "video", "audio", "base", "form"} & set(read.tags)
    assert [v for _, n, v in read.attributes if n in ("src", "srcset", "action", "data")] == []
    outside = [v for _, n, v in read.attributes if n in ("href", "xlink:href") and not v.startswith(("#", "data:,"))]
    assert outside == []
    assert re.findall(r"https?:|//[a-z]|@import|@font-face", markup) == []
    assert re.findall(r"url\((?!#)", markup) == []


def test_policy_forbids_what_the_page_does_not_do(markup):
    policy = {v for t, n, v in Page(markup).attributes if t == "meta" and n == "content"}
    assert any(v.startswith("default-src 'none'") for v in policy)


def test_parameters_and_states_are_there_as_text(markup):
    read = Page(markup)
    for name in ("<b>", 'w"</script>', "a&b"):
        assert name in read.text
    assert "b" not in read.tags[read.tags.index("table") :]
    assert "</script>" not in markup


def test_page_has_report_costs_drawing_and_code(markup):
    read = Page(markup)
    for words in ("direct paths", "192 B", "traces of D_RTRL", "Diagnostics", "relation_included", "def step("):
        assert words in read.text
    assert read.tags.count("svg") == 1
    assert "groups of states" in read.text[read.text.index("The graph") :]


def test_page_is_for_light_dark_and_paper(markup):
    for words in ("prefers-color-scheme: dark", "@media print", "color-scheme: light dark"):
        assert words in markup


def test_style_of_the_drawing_stays_inside(markup):
    assert Page(markup).tags.count("style") == 1
    drawing = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><style>*{color: red}</style><g/></svg>'
    assert "red" not in inline_svg(drawing, "x")


def test_page_without_matplotlib_says_what_to_install(markup, tmp_path, monkeypatch):
    def missing(*_):
        raise ImportError("no matplotlib")

    monkeypatch.setattr(page, "draw_graph", missing)
    assert main(["inspect", f"{MODELS}:make", "--html", str(tmp_path / "bare.html")]) == 0
    bare = (tmp_path / "bare.html").read_text()
    assert "svg" not in Page(bare).tags
    assert "foretrace[viz]" in bare


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_chromium_shows_it_without_errors_or_requests(file, tmp_path):
    browser = Chromium(tmp_path, file.as_uri())
    try:
        browser.wait("document.readyState === 'complete' && document.querySelectorAll('svg').length > 0")
        assert browser.problems == []
        assert set(browser.requests) == {file.as_uri()}
    finally:
        browser.close()
