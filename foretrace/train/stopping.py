"""When to stop: at a goal, when validation no longer improves, or when all iterations are done."""

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Goal = tuple[str, str, float]
COMPARED = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge}
REASONS = {
    "iterations": "all done",
    "data": "the data ended",
    "goal": "goal reached",
    "patience": "no lower loss any more",
    "interrupted": "interrupted",
    "not finite": "not finite any more",
}
"""Why a run stopped, in words."""


@dataclass
class Stopping:
    """Watches validations.

    Attributes:
        goal: A metric, a comparison and a value; or a function of the metrics; None for no goal.
        patience: Validations without a lower loss that are borne; None for any number.
        best: The lowest loss of a validation so far.
        waited: Validations since then.
    """

    goal: Goal | Callable[[Mapping[str, Any]], bool] | None
    patience: int | None
    best: float | None = None
    waited: int = 0

    def see(self, metrics: Mapping[str, Any]) -> bool:
        """Takes note of a validation, and says whether it is the best so far; one without a finite loss never is."""
        loss = metrics["loss"]
        if math.isfinite(loss) and (self.best is None or loss < self.best):
            self.best, self.waited = loss, 0
            return True
        self.waited += 1
        return False

    def reason(self, metrics: Mapping[str, Any] | None) -> str | None:
        """Why to stop after the last validation; None to go on."""
        if metrics is None:
            return None
        if self.goal is not None and reached(self.goal, metrics):
            return "goal"
        return "patience" if self.patience is not None and self.waited >= self.patience else None


def reached(goal: Goal | Callable[[Mapping[str, Any]], bool], metrics: Mapping[str, Any]) -> bool:
    """Whether metrics fulfil a goal.

    Raises:
        ValueError: There is no such metric.
    """
    if callable(goal):
        return bool(goal(metrics))
    name, comparison, value = goal
    if name not in metrics:
        raise ValueError(f"The goal is a `{name}`, which is not measured. There are {', '.join(map(str, metrics))}.")
    return metrics[name] is not None and bool(COMPARED[comparison](metrics[name], value))


def checked_goal(stop: Any, task: Any) -> Any:
    """The goal that `stop` asks for: the task's for True, else its own.

    Raises:
        ValueError: The task has no goal, or the goal is none.
    """
    if stop is None or stop is False:
        return None
    if stop is True:
        if task.goal is None:
            raise ValueError(f"The task `{task.name}` has no goal: say `stop=('accuracy', '>', 0.9)`, for instance.")
        stop = task.goal
    if callable(stop):
        return stop
    if not isinstance(stop, tuple) or len(stop) != 3 or stop[1] not in COMPARED:
        raise ValueError(f"`stop` is True, a function of the metrics, or (metric, '<' or '>', value); got {stop!r}.")
    return stop
