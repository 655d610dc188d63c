"""How single equations read as Python: one rule per primitive, and a default.

A rule takes an equation and the text of its operands and returns an expression. Operands are names or constants (a
negative one in parentheses), so that operators need no more of them.
"""

import enum
import keyword
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from foretrace._jax import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

INFIX = {
    "add": "+",
    "add_any": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "rem": "%",
    "pow": "**",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "and": "&",
    "or": "|",
    "xor": "^",
    "shift_left": "<<",
    "shift_right_logical": ">>",
}
JNP = {
    **{name: f"jnp.{name}" for name in "abs sign floor ceil round exp exp2 expm1 log log1p sqrt cbrt square".split()},
    **{name: f"jnp.{name}" for name in "sin cos tan sinh cosh tanh real imag conj".split()},
    **{f"a{name}": f"jnp.arc{name}" for name in "sin cos tan sinh cosh tanh".split()},
    "atan2": "jnp.arctan2",
    "max": "jnp.maximum",
    "min": "jnp.minimum",
    "is_finite": "jnp.isfinite",
    "logistic": "jax.nn.sigmoid",
    "erf": "jax.lax.erf",
    "rsqrt": "jax.lax.rsqrt",
    "stop_gradient": "jax.lax.stop_gradient",
    "untraced": "foretrace.untraced",
}
# Of the operands (`{0}`, `{1}`, `{all}`) and of the primitive's parameters by name.
TEMPLATES = {
    "neg": "-{0}",
    "not": "~{0}",
    "copy": "{0}",
    "integer_pow": "{0} ** {y}",
    "clamp": "jnp.clip({1}, {0}, {2})",
    "convert_element_type": "jnp.asarray({0}, {new_dtype})",
    "reshape": "{0}.reshape({new_sizes})",
    "squeeze": "jnp.squeeze({0}, axis={dimensions})",
    "rev": "jnp.flip({0}, axis={dimensions})",
    "concatenate": "jnp.concatenate([{all}], axis={dimension})",
    "stack": "jnp.stack([{all}], axis={axis})",
    **{f"reduce_{name}": f"jnp.{name}({{0}}, axis={{axes}})" for name in ("sum", "max", "min", "prod")},
    "reduce_and": "jnp.all({0}, axis={axes})",
    "reduce_or": "jnp.any({0}, axis={axes})",
}


def spell(eqn: JaxprEqn, operands: Sequence[str]) -> str:
    """The right-hand side of an equation as a Python expression."""
    name = eqn.primitive.name
    if name in INFIX:
        return f" {INFIX[name]} ".join(operands)
    if name in JNP:
        return f"{JNP[name]}({', '.join(operands)})"
    if name in TEMPLATES:
        params = {key: spell_value(value) for key, value in eqn.params.items()}
        return TEMPLATES[name].format(*operands, all=", ".join(operands), **params)
    return spelling_rules.get(name, call_by_name)(eqn, operands)


def call_by_name(eqn: JaxprEqn, operands: Sequence[str]) -> str:
    """Any primitive as a call with its parameters as keywords."""
    shown = {k: v for k, v in eqn.params.items() if v is not None}
    keywords = [f"{identifier(key)}={spell_value(value)}" for key, value in shown.items()]
    return f"{identifier(eqn.primitive.name)}({', '.join([*operands, *keywords])})"


def spell_value(value: Any) -> str:
    """A parameter of a primitive as a Python expression; what has none is quoted."""
    if isinstance(value, enum.Enum):
        return repr(value.name)
    if isinstance(value, bool | int | float | str | np.generic | type(None)):
        return repr(value.item() if isinstance(value, np.generic) else value)
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return f"jnp.{np.dtype(value).name}"
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        inside = ", ".join(map(spell_value, value))
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    if isinstance(value, ClosedJaxpr | Jaxpr) or callable(value):
        return repr(type(value).__name__)
    return repr(re.sub(r"\s+", " ", str(value)))


def spell_literal(atom: Literal) -> str:
    """A constant inside an equation."""
    value = np.asarray(atom.val) if not hasattr(atom.val, "dtype") or isinstance(atom.val, np.generic) else atom.val
    if np.ndim(value):
        return f"jnp.array({np.asarray(value).tolist()!r})".replace("nan", "jnp.nan").replace("inf", "jnp.inf")
    scalar = np.asarray(value).item()
    text = repr(scalar).replace("nan", "jnp.nan").replace("inf", "jnp.inf")
    return f"({text})" if text.startswith("-") else text


def identifier(text: str) -> str:
    """The text as a valid Python name."""
    name = re.sub(r"\W+", "_", text).strip("_") or "value"
    if name[0].isdigit():
        return f"v{name}"
    return f"{name}_" if keyword.iskeyword(name) else name


def _select(eqn: JaxprEqn, operands: Sequence[str]) -> str:
    if len(operands) == 3 and eqn.invars[0].aval.dtype == np.bool_:
        return f"jnp.where({operands[0]}, {operands[2]}, {operands[1]})"
    return f"jax.lax.select_n({', '.join(operands)})"


def _broadcast(eqn: JaxprEqn, operands: Sequence[str]) -> str:
    shape, dimensions = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    if not dimensions or dimensions == tuple(range(len(shape) - len(dimensions), len(shape))):
        return f"jnp.broadcast_to({operands[0]}, {shape!r})"
    index = ", ".join(":" if d in dimensions else "None" for d in range(len(shape)))
    if all(shape[d] == 1 for d in range(len(shape)) if d not in dimensions) and tuple(
        shape[d] for d in dimensions
    ) == tuple(eqn.invars[0].aval.shape):
        return f"{operands[0]}[{index}]"
    return f"jnp.broadcast_to({operands[0]}[{index}], {shape!r})"


def _transpose(eqn: JaxprEqn, operands: Sequence[str]) -> str:
    order = tuple(eqn.params["permutation"])
    return f"{operands[0]}.T" if order == (1, 0) else f"jnp.transpose({operands[0]}, {order!r})"


def _slice(eqn: JaxprEqn, operands: Sequence[str]) -> str:
    starts, stops = eqn.params["start_indices"], eqn.params["limit_indices"]
    strides = eqn.params["strides"] or (1,) * len(starts)
    parts = []
    for size, start, stop, stride in zip(eqn.invars[0].aval.shape, starts, stops, strides, strict=True):
        whole = (start, stop, stride) == (0, size, 1)
        parts.append(":" if whole else f"{start}:{stop}" + (f":{stride}" if stride != 1 else ""))
    return f"{operands[0]}[{', '.join(parts)}]"


def _iota(eqn: JaxprEqn, operands: Sequence[str]) -> str:
    shape, axis = tuple(eqn.params["shape"]), eqn.params["dimension"]
    dtype = spell_value(np.dtype(eqn.params["dtype"]))
    if len(shape) == 1:
        return f"jnp.arange({shape[0]}, dtype={dtype})"
    return f"jax.lax.broadcasted_iota({dtype}, {shape!r}, {axis})"


def _dot(eqn: JaxprEqn, operands: Sequence[str]) -> str:
    """`x @ w` for a matrix product, an einsum for any other."""
    (left_axes, right_axes), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    left, right = (v.aval.ndim for v in eqn.invars)
    if not left_batch and tuple(left_axes) == (left - 1,) and tuple(right_axes) == (0,) and right <= 2:
        return f"{operands[0]} @ {operands[1]}"
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    first = [next(letters) for _ in range(left)]
    second = [next(letters) for _ in range(right)]
    for i, j in zip((*left_axes, *left_batch), (*right_axes, *right_batch), strict=True):
        second[j] = first[i]
    out = [first[i] for i in left_batch]
    out += [c for i, c in enumerate(first) if i not in (*left_axes, *left_batch)]
    out += [c for i, c in enumerate(second) if i not in (*right_axes, *right_batch)]
    return f'jnp.einsum("{"".join(first)},{"".join(second)}->{"".join(out)}", {operands[0]}, {operands[1]})'


spelling_rules: dict[str, Callable[[JaxprEqn, Sequence[str]], str]] = {
    "select_n": _select,
    "broadcast_in_dim": _broadcast,
    "transpose": _transpose,
    "slice": _slice,
    "iota": _iota,
    "dot_general": _dot,
}
