"""Options in braintrace's form, by position."""

from collections.abc import Sequence
from typing import Any

# What each class takes by position after the model; a subclass takes what its base takes.
_COMMON = ("name", "vjp_method", "fast_solve")
_TRACE = ("trace_dtype", "chunked_trace", "control_flow")
_CONFIG = ("config", "random_feedback_key")
_PROJECTION = ("projection_key", "projection_eps", "random_feedback_key")
_LIMIT = ("snap_max_jacobian_elements",)
_PER_PARAMETER = (*_COMMON, *_TRACE, *_CONFIG, *_LIMIT)
_FACTORED = ("decay_or_rank", *_COMMON, "control_flow", *_CONFIG)
POSITIONAL: dict[str, tuple[str, ...]] = {
    "ParamDimVjpAlgorithm": _PER_PARAMETER,
    "D_RTRL": _PER_PARAMETER,
    "IODimVjpAlgorithm": _FACTORED,
    "pp_prop": _FACTORED,
    "HybridDimVjpAlgorithm": ("decay_or_rank", *_COMMON),
    "Hybrid": ("decay_or_rank", *_COMMON),
    "RandomProjectionVjpAlgorithm": (*_COMMON, "control_flow", "config", *_PROJECTION, *_LIMIT),
    "UORO": (*_COMMON, "control_flow", *_PROJECTION, *_LIMIT),
    "EProp": ("feedback", "kappa_filter_decay", "random_feedback_key", *_COMMON),
    "OTTT": ("mode",),
    "OTPE": ("mode",),
    "OSTTP": ("B_list", "target_timing", *_COMMON),
    "SnAp": ("n", *_COMMON, *_LIMIT),
    "ThreeFactor": ("name", "vjp_method", "modulator", "fast_solve", *_TRACE, *_LIMIT),
    "DNI": ("synthesizer", *_COMMON, *_TRACE, *_LIMIT),
}


def by_position(owner_class: type, values: Sequence[Any], given: Sequence[str]) -> dict[str, Any]:
    """Options that were given by position, by name.

    Args:
        owner_class: The class of the learner or of the rule; a subclass takes what its base takes.
        values: What was given by position after the model.
        given: Names of options that were given by name.

    Raises:
        TypeError: Too many values, or an option given twice.
    """
    owner = owner_class.__name__
    names = next((POSITIONAL[base.__name__] for base in owner_class.__mro__ if base.__name__ in POSITIONAL), ())
    if len(values) > len(names):
        allowed = ", ".join(f"`{name}`" for name in ("model", *names))
        raise TypeError(f"{owner} takes {allowed} by position, and everything else by name.")
    found = dict(zip(names, values, strict=False))
    twice = [name for name in found if name in given]
    if twice:
        raise TypeError(f"{owner} got `{twice[0]}` by position and by name.")
    if not isinstance(found.get("name", ""), str | None):
        listed = ", ".join(f"`{name}`" for name in names)
        raise TypeError(f"{owner} takes {listed} by position after the model; `name` is {found['name']!r}, no text.")
    return found
