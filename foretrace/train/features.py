"""From a dictionary of features, as a sample of a stream is given, to the row of numbers that a network reads.

Every feature has a place of its own among the inputs. The features of the first sample take theirs by name, so that the
order of a dictionary, which means nothing, decides nothing. A feature that is not in a sample is 0 there. One that
appears later takes the next free place; where there is none, what happens is said in advance (`policy`).
"""

import math
import warnings
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from foretrace._checks import is_number

POLICIES = ("warn", "ignore", "error")


class NewFeatureWarning(UserWarning):
    """A feature appeared for which a network has no input left: it is ignored."""


@dataclass
class Features:
    """The places of features among the inputs of a network.

    Attributes:
        size: Inputs.
        policy: For a feature without a place: `'warn'` (ignored, with one warning for each), `'ignore'` or `'error'`.
        places: The place of each feature.
        ignored: The features without a place that were met while learning.
    """

    size: int
    policy: str
    places: dict[Hashable, int] = field(default_factory=dict)
    ignored: set[Hashable] = field(default_factory=set)

    def admit(self, x: Mapping[Hashable, Any]) -> None:
        """Gives each new feature of a sample a place, or does what the policy says."""
        for name in sorted(x.keys() - self.places.keys() - self.ignored, key=by_name):
            if len(self.places) < self.size:
                self.places[name] = len(self.places)
            else:
                self._refuse(name)

    def row(self, x: Mapping[Hashable, Any], dtype: Any) -> np.ndarray:
        """The inputs of a sample; features without a place are left out, those that are missing are 0."""
        row = np.zeros(self.size, dtype)
        for name, value in x.items():
            place = self.places.get(name)
            if place is not None:
                row[place] = checked_number(name, value)
        return row

    def _refuse(self, name: Hashable) -> None:
        problem = f"The feature {name!r} is new, and all {self.size} inputs of the network are taken"
        if self.policy == "error":
            raise ValueError(
                f"{problem}. Reserve inputs by `max_features=`, or leave new features out by `new_features='ignore'`."
            )
        self.ignored.add(name)
        if self.policy == "warn":
            text = f"{problem}: it is ignored. Reserve inputs by `max_features=`, or say `new_features='ignore'`."
            warnings.warn(text, NewFeatureWarning, stacklevel=6)


def names_of(features: Iterable[Hashable]) -> list[Hashable]:
    """Names in the order of the inputs, checked: each stands there once."""
    names = list(features)
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"`features` names each input once; {twice[0]!r} stands there {names.count(twice[0])} times.")
    return names


def by_name(name: Hashable) -> tuple[str, str]:
    """A key that sorts names of any type."""
    return type(name).__name__, str(name)


def checked_number(name: Hashable, value: Any) -> float:
    """The value of a feature as a finite number; a bool counts as 0 or 1."""
    if not (is_number(value) or isinstance(value, bool | np.bool_)):
        raise TypeError(
            f"The feature {name!r} is {value!r}, a {type(value).__name__} and no number. Encode words by "
            "`preprocessing.OneHotEncoder()`, choose numbers by `compose.SelectType(float, int)`, or leave it out of "
            "the sample, which counts as 0."
        )
    if not math.isfinite(value):
        raise ValueError(
            f"The feature {name!r} is {value!r}. A network reads finite numbers: fill it in by "
            "`preprocessing.StatImputer()` (which takes None), or leave it out of the sample, which counts as 0."
        )
    return float(value)
