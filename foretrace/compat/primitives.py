"""The trace rules that operators written for braintrace register: taken, checked, and neither needed nor kept.

Every rule follows from an operator's `impl_fn` here.
"""

from collections.abc import Callable
from typing import Any

from foretrace.ops import ETPPrimitive

RULES = ("dt_to_t yw_to_w xy_to_dw init_drtrl init_pp fast_path pp_x_repr snap_anchor snap_adjacency").split()


def register_etp_rules(primitive: ETPPrimitive, **rules: Any) -> None:
    """Takes the trace rules of an operator.

    Args:
        primitive: The operator; as its method the function is called without.
        **rules: Functions by the names that they have in braintrace, such as `dt_to_t` and `xy_to_dw`.

    Raises:
        TypeError: Not the name of such a rule, or not a function.
    """
    for name, rule in rules.items():
        if name not in RULES:
            known = ", ".join(f"`{known}`" for known in RULES)
            raise TypeError(f"Operator `{primitive.name}`: there is no trace rule `{name}`. There are {known}.")
        if rule is not None and not callable(rule) and name != "fast_path":
            raise TypeError(f"Operator `{primitive.name}`: the trace rule `{name}` is a function; got {rule!r}.")


def _one(name: str) -> Callable[[ETPPrimitive, Any], None]:
    return lambda primitive, fn: register_etp_rules(primitive, **{name: fn})


register_dt_to_t, register_yw_to_w, register_xy_to_dw, register_init_drtrl, register_init_pp = map(_one, RULES[:5])
