"""The low-rank layer: few parameters, alone or as a correction of a layer that exists.

The product of the two factors is a function of parameters alone. What is traced is the dense product with it, and both
factors get their gradients through it.
"""

from collections.abc import Callable
from typing import Any

import brainstate

from foretrace.nn.parameters import LECUN_NORMAL, Size, checked_count, checked_size, whole
from foretrace.ops import lora_matmul
from foretrace.ops.units import ArrayLike


class LoRA(brainstate.nn.LoRA):
    """The layer `y = x @ lora_a @ lora_b`, plus what `base_module` gives for `x`.

    The parameters of the base module stay parameters of the model, and are traced if it is a layer of this package.
    To train the factors alone, ask for their gradients alone: `learner.etrace_grad(..., weights=[layer.weight])`.

    Args:
        in_features: The size of the input's last axis.
        lora_rank: The rank of the product.
        out_features: The size of the output's last axis.
        base_module: A module or function of `x` whose result is added; None for none.
        kernel_init: The initialiser of both factors.
        param_type: The class of the parameters' state.
        in_size: The size of the input without batch axes, where it has several.

    Raises:
        ValueError: A number that is not positive, or `in_size` that does not end with `in_features`.
        TypeError: `base_module` or `kernel_init` cannot be called.

    Attributes:
        weight: The parameters, `{'lora_a': (in, rank), 'lora_b': (rank, out)}`.

    Examples:
        >>> import brainstate, jax.numpy as jnp
        >>> from foretrace.nn.linear import Linear
        >>> layer = LoRA(3, 1, 2, base_module=Linear(3, 2, w_init=0.5), kernel_init=jnp.ones)
        >>> layer(jnp.ones(3)).tolist()
        [4.5, 4.5]
    """

    def __init__(
        self,
        in_features: int,
        lora_rank: int,
        out_features: int,
        *,
        base_module: Callable[..., Any] | None = None,
        kernel_init: Callable[..., Any] = LECUN_NORMAL,
        param_type: type = brainstate.ParamState,
        in_size: Size | None = None,
    ) -> None:
        numbers = {"in_features": in_features, "lora_rank": lora_rank, "out_features": out_features}
        inputs, rank, outputs = (checked_count("LoRA", name, value) for name, value in numbers.items())
        if base_module is not None and not callable(base_module):
            raise TypeError(f"LoRA: `base_module` must be a module or a function, got {base_module!r}.")
        if not callable(kernel_init):
            raise TypeError(
                f"LoRA: `kernel_init` must be an initialiser, which is called for both factors, got {kernel_init!r}."
            )
        size = None if in_size is None else checked_size("LoRA", "in_size", in_size)
        if size is not None and size[-1] != inputs:
            raise ValueError(f"LoRA: `in_size` {size} does not end with `in_features`, {inputs}.")
        kernel = whole("LoRA", "kernel_init", kernel_init)
        super().__init__(
            inputs, rank, outputs, base_module=base_module, kernel_init=kernel, param_type=param_type, in_size=size
        )

    def __call__(self, x: ArrayLike) -> Any:
        return self.update(x)

    def update(self, x: ArrayLike) -> Any:
        """The output for data of shape `(..., in_features)`."""
        params = self.weight.value
        y = lora_matmul(x, params["lora_a"], params["lora_b"])
        return y if self.base_module is None else y + self.base_module(x)
