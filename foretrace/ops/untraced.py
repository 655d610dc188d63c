"""The mark of a value that is kept out of history on purpose.

It is the identity under every transformation. Where the value meets data the compiler keeps no trace for it: the
gradient is the exact one within each step, without credit for earlier steps.
"""

from typing import Any

import jax
import jax.numpy as jnp

from foretrace._jax import Primitive, ad, batching, is_float, mlir

untraced_p = Primitive("untraced")
untraced_p.def_impl(lambda value: value)
untraced_p.def_abstract_eval(lambda value: value)
mlir.register_lowering(untraced_p, mlir.lower_fun(lambda value: value, multiple_results=False))
ad.deflinear2(untraced_p, lambda cotangent, value: [cotangent])
batching.defvectorized(untraced_p)


def untraced(weight: Any) -> Any:
    """Keeps a value made of parameters out of history credit.

    The value itself does not change. Its parameters get the exact gradient within each step, and no eligibility trace:
    what they did to earlier states earns no credit. Use it for a weight whose trace costs more than it brings. The
    report says that it was on purpose.

    Where a value is made of several parameters, or an operator takes several weights, all of them are kept out as soon
    as one is.

    Args:
        weight: An array, or a pytree of arrays; leaves that are not floating stay as they are.

    Returns:
        The same values, marked.

    Examples:
        >>> import jax.numpy as jnp
        >>> import foretrace as ft
        >>> def step(params, h, x):
        ...     h = 0.9 * h + x @ params["w"] + ft.untraced(params["b"])
        ...     return h, h
        >>> params = {"w": jnp.ones((3, 5)), "b": jnp.zeros(5)}
        >>> graph = ft.compile_etrace_graph(step, jnp.ones(3), params=params, state=jnp.zeros(5))
        >>> [(parameter.name, parameter.history.value) for parameter in graph.parameters]
        [('b', 'in-step'), ('w', 'all')]
    """
    return jax.tree.map(_marked, weight)


def _marked(value: Any) -> Any:
    array = jnp.asarray(value)
    return untraced_p.bind(array) if is_float(jax.typeof(array)) else value
