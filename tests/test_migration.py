"""The migration page is whole and true: every name of braintrace stands in its tables, with its versions and ours."""

import functools
import re
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import foretrace as ft
from migration_names import NAMES

PAGE = Path(__file__).parent.parent / "docs" / "migration.md"
HEADER = "| name | in | here |"
ALL_NAMES = sorted(frozenset().union(*NAMES.values()))


class Row(NamedTuple):
    """What the page says of a name."""

    versions: str
    here: str


def rows(markdown: str) -> list[tuple[str, Row]]:
    """The names in the first cell of the page's tables of names, each with the next two cells."""
    found, is_inside = [], False
    for line in markdown.splitlines():
        is_inside = line.startswith(HEADER) or (is_inside and line.startswith("|"))
        if is_inside and not line.startswith((HEADER, "|---")):
            names, versions, here, *_ = (cell.strip() for cell in line.strip("|").split("|"))
            found += [(name, Row(versions, here)) for name in re.findall(r"`([\w.]+)`", names)]
    return found


@functools.cache
def page() -> dict[str, Row]:
    return dict(rows(PAGE.read_text()))


def resolved(name: str) -> Any:
    return functools.reduce(getattr, name.split("."), ft)


def test_no_name_stands_twice_or_is_none_of_theirs() -> None:
    names = [name for name, _ in rows(PAGE.read_text())]
    assert len(names) == len(set(names))
    assert set(names) <= set(ALL_NAMES)


@pytest.mark.parametrize("name", ALL_NAMES)
def test_name_is_on_the_page_with_its_versions(name: str) -> None:
    versions = [version for version, names in NAMES.items() if name in names]
    assert page()[name].versions == ("all" if len(versions) == len(NAMES) else ", ".join(versions))


@pytest.mark.parametrize("name", ALL_NAMES)
def test_name_is_here_as_the_page_says(name: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert resolved(name) is not None
    is_deprecated = any(issubclass(warning.category, DeprecationWarning) for warning in caught)
    assert page()[name].here == ("deprecated" if is_deprecated else "the same")


def test_table_is_read_by_its_header() -> None:
    markdown = f"{HEADER} remark |\n|---|---|---|---|\n| `a`, `nn.B` | all | the same | as `c` |\n\n| `d` | x | y |\n"
    assert rows(markdown) == [(name, Row("all", "the same")) for name in ("a", "nn.B")]


def test_version_is_given_in_both_forms() -> None:
    assert ".".join(map(str, ft.__version_info__)) == ft.__version__
    assert f"\nversion: {ft.__version__}\n" in (Path(__file__).parent.parent / "CITATION.cff").read_text()
