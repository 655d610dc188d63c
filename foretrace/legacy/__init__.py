"""The names of parameters and operators of braintrace 0.1, for scripts that still use them.

There, an operator was an object (`MatMulOp`) and a parameter one that knew its operator (`ETraceParam`); its `execute`
marked the occurrence. Here a parameter is any `brainstate.ParamState` and an operator a function, so these classes only
join the two: `param.execute(x)` is `foretrace.matmul(x, param.value["weight"], param.value["bias"])`. Each name is
served by `foretrace.__getattr__` with a warning that says what to write instead.
"""

import warnings
from typing import Any

from foretrace.legacy.gradients import general_y2w, stop_param_gradients
from foretrace.legacy.operators import ConvOp, ElemWiseOp, ETraceOp, LoraOp, MatMulOp, SpMatMulOp
from foretrace.legacy.parameters import ElemWiseParam, ETraceParam, FakeElemWiseParam, FakeETraceParam, NonTempParam

__all__ = [
    "ConvOp",
    "ETraceOp",
    "ETraceParam",
    "ElemWiseOp",
    "ElemWiseParam",
    "FakeETraceParam",
    "FakeElemWiseParam",
    "LoraOp",
    "MatMulOp",
    "NonTempParam",
    "SpMatMulOp",
    "general_y2w",
    "stop_param_gradients",
]

INSTEAD: dict[str, str] = {
    "ETraceOp": "a function with `foretrace.register_primitive`",
    "MatMulOp": "`foretrace.matmul`",
    "ElemWiseOp": "`foretrace.element_wise`",
    "ConvOp": "`foretrace.conv`",
    "SpMatMulOp": "`foretrace.sparse_matmul`",
    "LoraOp": "`foretrace.lora_matmul`",
    "ETraceParam": "`brainstate.ParamState` with an operator such as `foretrace.matmul`",
    "ElemWiseParam": "`brainstate.ParamState` with `foretrace.element_wise`",
    "NonTempParam": "`brainstate.ParamState` with plain JAX",
    "FakeETraceParam": "a plain array",
    "FakeElemWiseParam": "a plain array",
    "general_y2w": "`jax.vjp`; operators need no such rule",
    "stop_param_gradients": "`jax.lax.stop_gradient`",
}


def serve(name: str) -> Any:
    """A deprecated name of the package, with a warning at the line that asks the package for it.

    Raises:
        AttributeError: The package has no such name, deprecated or not.
    """
    if name not in INSTEAD:
        raise AttributeError(f"module 'foretrace' has no attribute {name!r}")
    warnings.warn(f"`foretrace.{name}` is deprecated: use {INSTEAD[name]} instead.", DeprecationWarning, stacklevel=3)
    return globals()[name]
