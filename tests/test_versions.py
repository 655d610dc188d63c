"""What the package says of the versions it runs on is true, and said in one way everywhere."""

import re
import sys
import tomllib
import warnings
from importlib.metadata import version
from pathlib import Path

import pytest

from foretrace import _versions

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIREMENT = re.compile(r"([A-Za-z0-9_-]+)(?:\[[^]]*\])?>=([0-9.]+)")
TOOLS = ("lint", "docs", "build")  # of no use to a user's program


def numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:3]))


def lower_bounds() -> dict[str, str]:
    extras = PROJECT["optional-dependencies"]
    listed = [*PROJECT["dependencies"], *(r for name in extras if name not in TOOLS for r in extras[name])]
    return {found[1]: found[2] for found in map(REQUIREMENT.match, listed) if found}


def workflow_pythons() -> list[str]:
    text = (ROOT / ".github" / "workflows" / "test.yml").read_text()
    return re.findall(r'"(3\.\d+)"', re.search(r"python: \[(.*)\]", text)[1])


@pytest.mark.parametrize("name", lower_bounds())
def test_installed_version_is_in_the_range(name):
    assert numbers(version(name)) >= numbers(lower_bounds()[name])


def test_oldest_libraries_of_ci_are_the_lower_bounds():
    lines = (ROOT / ".ci" / "oldest.txt").read_text().splitlines()
    assert dict(line.split("==") for line in lines if not line.startswith("#")) == lower_bounds()


def test_oldest_jax_is_the_lower_bound():
    assert numbers(lower_bounds()["jax"]) == _versions.OLDEST_JAX


def test_installed_jax_is_one_that_is_tested():
    assert numbers(version("jax"))[: len(_versions.NEWEST_JAX)] <= _versions.NEWEST_JAX


def test_every_python_of_ci_is_a_classifier():
    named = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert named == workflow_pythons()


def test_oldest_python_of_ci_is_the_required_one():
    assert PROJECT["requires-python"] == f">={workflow_pythons()[0]}"


def test_this_python_is_one_of_ci():
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in workflow_pythons()


def test_older_jax_is_refused_with_the_way_out():
    with pytest.raises(ImportError, match=r"JAX 0\.10\.2 or later, but 0\.9\.2 .* pip install --upgrade jax"):
        _versions.check_jax("0.9.2")


def test_newer_jax_is_warned_of_once():
    with pytest.warns(_versions.UntestedVersionWarning, match=r"JAX 0\.99\.1 is newer") as caught:
        _versions.check_jax("0.99.1")
    assert len(caught) == 1


@pytest.mark.parametrize("found", ["0.10.2", "0.11.0", "0.12.0.1", "0.12.3.dev20261101+abc"])
def test_tested_jax_is_not_mentioned(found):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _versions.check_jax(found)


def test_no_other_file_goes_by_the_version_of_jax():
    ordered = re.compile(
        r"__version(_info)?__\s*([<>]|\.startswith|\.split)|version\(.jaxl?i?b?.\)|OLDEST_JAX|NEWEST_JAX"
    )
    package = ROOT / "foretrace"
    assert [p.name for p in package.rglob("*.py") if ordered.search(p.read_text())] == ["_versions.py"]
