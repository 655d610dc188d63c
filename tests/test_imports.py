"""Imports point one way: the sources are read, not run, and compared with a table of what each layer may use."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "foretrace"

BASE = {"_checks", "_html", "_jax", "_look", "_optional", "_repr", "_signature", "_units", "errors"}
PIPELINE = ("program", "ops", "compiler", "engine", "rules")

# What each part of the package may import, besides itself.
MAY_IMPORT: dict[str, set[str]] = {
    "_checks": set(),
    "_interrupt": set(),
    "_jax": set(),
    "_look": {"_figure"},
    "_records": {"_checks"},
    "_repr": set(),
    "_html": set(),
    "_figure": {"_look"},
    "_optional": set(),
    "_signature": set(),
    "_units": set(),
    "errors": set(),
    "_versions": set(),
    **{layer: BASE | set(PIPELINE[:place]) for place, layer in enumerate(PIPELINE)},
    "frontends": BASE | {"program"},
    "nn": BASE | {"ops"},
    "learners": BASE | set(PIPELINE) | {"frontends"},
    "entry": BASE | set(PIPELINE) | {"frontends", "learners"},
}
ABOVE = {"tasks", "viz", "train", "rl", "cli"}
MAY_IMPORT |= {part: set(MAY_IMPORT) | ABOVE | {"__init__"} for part in (*sorted(ABOVE), "__main__")}
MAY_IMPORT["compat"] = (
    BASE | set(PIPELINE) | {"frontends", "learners", "entry", "nn"}
)  # and nobody but the top imports it
MAY_IMPORT["__init__"] = set(MAY_IMPORT)

MODEL_LIBRARIES = {"brainstate", "brainpy", "brainpy_state", "braintools", "flax", "equinox", "river"}
UNIT_LIBRARIES = {"brainunit", "saiunit", "brainevent"}
# Files are named where the rest of their folder works for plain functions too.
MAY_USE_MODELS = {
    *(f"frontends/{file}.py" for file in ("brainstate", "guarded_call", "nnx", "linen", "equinox")),
    *("nn", "networks", "tasks", "viz", "cli"),
    *(f"compat/{file}.py" for file in ("executors", "module_info", "parameters")),
    *(f"learners/{file}.py" for file in ("driver", "executor", "helpers", "module", "nnx_module", "recording")),
    *("learners/traced_sequence.py", "learners/vmap.py", "train/river.py"),
}

UNSTABLE_JAX = ("jax._src", "jax.interpreters", "jax.extend")
MAY_USE_UNSTABLE_JAX = {"_jax"}


def part_of(path: Path, package: Path) -> str:
    """The layer that a file belongs to: its folder, or its own name at the top."""
    first = path.relative_to(package).parts[0]
    return first.removesuffix(".py")


def dotted(node: ast.expr) -> str | None:
    """`a.b.c` for a chain of attributes, nothing for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return owner and f"{owner}.{node.attr}"
    return None


def modules_used(path: Path, package: Path) -> Iterator[tuple[int, str]]:
    """Every dotted name that a file imports, or reaches as an attribute of `jax`, with its line."""
    inside = (package.name, *path.relative_to(package).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                start = ".".join(inside[: len(inside) - level + 1]) if level else ""
                source = ".".join(piece for piece in (start, module) if piece)
                yield from ((node.lineno, f"{source}.{alias.name}") for alias in names)
            case ast.Attribute():
                name = dotted(node)
                if name and name.startswith("jax."):
                    yield node.lineno, name


def inner_part(name: str, package: Path) -> str | None:
    """The layer that a dotted name of the package leads to; a public name leads to `__init__`."""
    top, _, rest = name.partition(".")
    if top != package.name:
        return None
    first = rest.partition(".")[0]
    known = first in MAY_IMPORT or (package / first).is_dir() or (package / f"{first}.py").is_file()
    return first if first and known else "__init__"


def violations(package: Path) -> list[str]:
    """Every import of a package that the tables above do not allow, one line each."""
    found = set()
    for path in sorted(package.rglob("*.py")):
        part = part_of(path, package)
        if part not in MAY_IMPORT:
            found.add(f"{path.name}: `{part}` is in no layer; add it to MAY_IMPORT")
            continue
        for line, name in modules_used(path, package):
            where = f"{path.relative_to(package)}:{line}"
            other = inner_part(name, package)
            if other is not None and other != part and other not in MAY_IMPORT[part]:
                found.add(f"{where}: `{part}` imports `{other}`")
            library = name.partition(".")[0] in MODEL_LIBRARIES | UNIT_LIBRARIES
            if library and not {part, str(path.relative_to(package))} & MAY_USE_MODELS:
                found.add(f"{where}: `{part}` imports a model library, `{name}`")
            unstable = [module for module in UNSTABLE_JAX if f"{name}.".startswith(f"{module}.")]
            if unstable and part not in MAY_USE_UNSTABLE_JAX:
                found.add(f"{where}: `{part}` uses unstable JAX, `{unstable[0]}`")
    return sorted(found)


def test_imports_point_one_way() -> None:
    assert violations(PACKAGE) == []


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("program/a.py", "from foretrace.compiler import graph"),
        ("program/a.py", "import foretrace.ops.dense"),
        ("program/a.py", "from ..compiler import graph"),
        ("program/a.py", "from foretrace import compiler"),
        ("program/a.py", "def late():\n    from foretrace.engine import forward"),
        ("ops/a.py", "import foretrace as ft"),
        ("compiler/pattern_rules/a.py", "from ...rules import d_rtrl"),
        ("compiler/a.py", "import brainstate"),
        ("compiler/a.py", "from foretrace.frontends.brainstate import read"),
        ("engine/a.py", "from brainpy.state import LIF"),
        ("frontends/a.py", "from foretrace.compiler import graph"),
        ("ops/a.py", "def product():\n    import brainevent"),
        ("frontends/function.py", "import brainunit"),
        ("learners/learner.py", "import brainstate"),
        ("entry.py", "from brainstate.nn import Module"),
        ("train/fit.py", "from river import base"),
        ("learners/module.py", "from foretrace.compat import graphs"),
        ("entry.py", "import foretrace.compat"),
        ("ops/a.py", "from jax.extend.core import Primitive"),
        ("ops/a.py", "from jax.interpreters import ad"),
        ("ops/a.py", "from jax import extend"),
        ("ops/a.py", "import jax\nprimitive = jax._src.core.Primitive"),
        ("errors.py", "from foretrace.program.records import Leaf"),
        ("newcomer/a.py", ""),
    ],
)
def test_wrong_import_is_found(tmp_path: Path, file: str, source: str) -> None:
    path = tmp_path / "foretrace" / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert len(violations(tmp_path / "foretrace")) == 1


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("_jax.py", "from jax._src import core"),
        (
            "ops/a.py",
            "import numpy\nfrom foretrace._jax import Primitive\nfrom foretrace.program.records import Leaf",
        ),
        ("compiler/pattern_rules/a.py", "from .. import patterns\nfrom ...ops import registry"),
        ("frontends/brainstate.py", "import brainstate\nfrom foretrace.program.records import StepProgram"),
        ("entry.py", "from foretrace.compiler import graph\nfrom foretrace.frontends import function"),
        ("cli/demo.py", "import foretrace as ft\nimport brainstate"),
        ("rules/a.py", "import jax\nvalue = jax.numpy.zeros(3)"),
    ],
)
def test_right_import_is_left_alone(tmp_path: Path, file: str, source: str) -> None:
    path = tmp_path / "foretrace" / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert violations(tmp_path / "foretrace") == []


DERIVATIVES = {f"jax.{name}" for name in "grad hessian jacfwd jacobian jacrev jvp linearize value_and_grad vjp".split()}
# A derivative is traced here, or taken at ones, to see which elements depend on which.
LOOKS_AT_DERIVATIVES = {"backward.py", "pattern_rules/linear.py", "pattern_rules/nested.py"}


def derivatives_taken(package: Path) -> list[str]:
    """The files of the compiler that take derivatives, which are the engine's."""
    compiler = package / "compiler"
    names = {path: {name for _, name in modules_used(path, package)} for path in compiler.rglob("*.py")}
    taken = {str(path.relative_to(compiler)) for path, used in names.items() if used & DERIVATIVES}
    return sorted(taken - LOOKS_AT_DERIVATIVES)


def test_the_compiler_takes_no_derivative() -> None:
    assert derivatives_taken(PACKAGE) == []


@pytest.mark.parametrize("source", ["import jax\nslope = jax.grad(abs)", "from jax import vjp"])
def test_derivative_in_the_compiler_is_found(tmp_path: Path, source: str) -> None:
    path = tmp_path / "foretrace" / "compiler" / "a.py"
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert derivatives_taken(tmp_path / "foretrace") == ["a.py"]
