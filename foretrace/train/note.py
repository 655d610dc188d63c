"""What a checkpoint of a run says about it, beside the arrays: read with care, since a file can say anything."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from foretrace.train.checkpoint import Checkpoint, CheckpointError


@dataclass(frozen=True)
class Note:
    """What stands beside the arrays.

    Attributes:
        settings: What a run must have in common with one that it goes on with.
        lines: Iterations done, and so lines of metrics.
        best: The iteration and the metrics of the validation with the lowest loss; None where there was none.
        waited: Validations since then.
        first: Numbers of the first iteration; None before it.
    """

    settings: dict[str, Any]
    lines: int
    best: dict[str, Any] | None = None
    waited: int = 0
    first: dict[str, float] | None = None

    def plain(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def note_of(found: Checkpoint) -> Note:
    """The note of a checkpoint.

    Raises:
        CheckpointError: It is none of a run, or a part of it cannot be.
    """
    said = found.note
    best, first = said.get("best"), said.get("first")
    sound = {
        "settings": isinstance(said.get("settings"), dict),
        "lines": _count(said.get("lines")),
        "waited": _count(said.get("waited")),
        "best": best is None or _is_best(best, said.get("lines")),
        "first": first is None
        or (
            isinstance(first, dict)
            and set(first) == {"loss", "gradient_norm", "change"}
            and all(map(_real, first.values()))
        ),
    }
    wrong = [name for name, good in sound.items() if not good]
    if wrong:
        raise CheckpointError(f"its note says `{wrong[0]}` = {str(said.get(wrong[0]))[:40]}, which no run writes.")
    return Note(said["settings"], said["lines"], best, said["waited"], first)


def _is_best(best: Any, lines: Any) -> bool:
    if not isinstance(best, dict) or not isinstance(best.get("metrics"), dict):
        return False
    loss, iteration = best["metrics"].get("loss"), best.get("iteration")
    known = all(value is None or _real(value) for value in best["metrics"].values())
    return known and _real(loss) and math.isfinite(loss) and _count(iteration) and _count(lines) and iteration <= lines


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _real(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
