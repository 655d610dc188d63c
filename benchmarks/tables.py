"""What result pages share: Markdown tables, and the line that says on which machine they were measured."""

import importlib
import os
import platform
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def machine() -> str:
    """The interpreter and the processor of this run."""
    return f"Python {platform.python_version()}, {os.cpu_count()} CPU cores, {platform.machine()}"


def versions(*names: str) -> str:
    """The versions of some packages in this environment."""
    modules = [importlib.import_module(name) for name in names]
    return ", ".join(f"{module.__name__} {module.__version__}" for module in modules)


def megabytes(size: float) -> str:
    """A number of bytes in MB, with three digits where it is small."""
    return f"{size / 1e6:.3g}" if size < 1e8 else f"{size / 1e6:.0f}"


def write(path: Path, text: str) -> None:
    """Writes a result page, and its folder where there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
