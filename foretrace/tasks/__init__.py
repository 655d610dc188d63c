"""Tasks to train on: generators with published settings, and real data that ships inside packages.

`Task()` is the task as published, `Task(delay=100.0)` a version of it; `find_task` takes the names of the command line.
Each task gives trials to train on (`sample`), held-out ones (`test_trials`), a loss for every step, a measure of
success, the published stop criterion (`goal`) and a picture of a trial (`plot`).
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from foretrace.tasks.arrays import ArrayTask, from_arrays
from foretrace.tasks.batches import BatchTask, from_batches
from foretrace.tasks.evidence import EvidenceAccumulation
from foretrace.tasks.images import SequentialDigits, SequentialMNIST
from foretrace.tasks.match_to_sample import DelayedMatchToSample
from foretrace.tasks.pattern import PatternGeneration
from foretrace.tasks.randman import Randman
from foretrace.tasks.sequences import Adding, Copy
from foretrace.tasks.store_recall import StoreRecall
from foretrace.tasks.task import Goal, Task, Trial
from foretrace.tasks.vowels import JapaneseVowels

TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (
        EvidenceAccumulation,
        StoreRecall,
        DelayedMatchToSample,
        PatternGeneration,
        Copy,
        Adding,
        Randman,
        SequentialDigits,
        SequentialMNIST,
        JapaneseVowels,
    )
}
"""Every task by its name on the command line."""


def find_task(name: str, **settings: Any) -> Task:
    """Makes a task from its name.

    Args:
        name: One of `TASKS`, in any case, with `-` or `_`.
        **settings: Of that task, in place of the published ones.

    Returns:
        The task.

    Raises:
        ValueError: A name or a setting that does not exist, or a setting with a value that makes no sense.

    Examples:
        >>> find_task("evidence", n_cues=3).n_steps
        1650
    """
    found = TASKS.get(name.lower().replace("_", "-"))
    if found is None:
        raise ValueError(f"There is no task {name!r}; there are {', '.join(TASKS)}.")
    known = [field.name for field in dataclasses.fields(found)]
    unknown = [setting for setting in settings if setting not in known]
    if unknown:
        raise ValueError(
            f"The task {found.name!r} has no setting {', '.join(map(repr, unknown))}; "
            f"it has {', '.join(sorted(known))}."
        )
    return found(**settings)


def as_task(given: Any) -> Any:
    """A task from what a user gives as one.

    Args:
        given: A task, its name, a pair of arrays `(X, y)`, or an iterable of batches `(X, y)`.

    Returns:
        The task.

    Raises:
        TypeError: None of these.

    Examples:
        >>> as_task("adding").name
        'adding'
    """
    if isinstance(given, str):
        return find_task(given)
    is_task = callable(getattr(given, "sample", None)) and not isinstance(given, type)
    if isinstance(given, tuple | list) and len(given) == 2 and not all(isinstance(one, tuple) for one in given):
        return from_arrays(*given)
    if not is_task and _is_iterable(given):
        return from_batches(given)
    if not is_task:
        shown = given.__name__ if isinstance(given, type) else type(given).__name__
        raise TypeError(
            f"Got {shown} as a task. A task is one of `foretrace.tasks`, such as `EvidenceAccumulation()`, its name "
            "('evidence'), a pair of arrays `(X, y)`, as `tasks.from_arrays(X, y)` takes them, or an iterable of "
            "batches `(X, y)`, as `tasks.from_batches(batches)` does."
        )
    return given


def _is_iterable(given: Any) -> bool:
    """Whether something may be batches one after another: no array, and no sequence of arrays."""
    is_array = lambda one: hasattr(one, "__array__") or hasattr(one, "shape")
    if isinstance(given, tuple | list):
        return not any(map(is_array, given))
    return isinstance(given, Iterable) and not isinstance(given, Mapping | type) and not is_array(given)


__all__ = [
    "TASKS",
    "Adding",
    "ArrayTask",
    "BatchTask",
    "Copy",
    "DelayedMatchToSample",
    "EvidenceAccumulation",
    "Goal",
    "JapaneseVowels",
    "PatternGeneration",
    "Randman",
    "SequentialDigits",
    "SequentialMNIST",
    "StoreRecall",
    "Task",
    "Trial",
    "as_task",
    "find_task",
    "from_arrays",
    "from_batches",
]
