"""Normalisations whose scale and bias are traced.

The statistics are brainstate's; what is added is the mark on the learned scale and bias. Both act element by element
after the normalisation, so where a state follows directly their history is kept, like that of a bias.

What a normalisation does to the credit of the weights *before* it is another matter. `LayerNorm`, `RMSNorm` and
`GroupNorm` take their statistics over positions, and a `BatchNorm` that is being fitted takes them over the examples,
which is mixing. A weight before such a layer keeps the direct paths: its history follows each value through the
division by a standard deviation, and leaves out what the value does to all others by the statistics. The report says
so. A `BatchNorm` that is not being fitted divides by running statistics, which are constants, and mixes nothing.

Running statistics are written while a model is fitted and read otherwise (`brainstate.environ`, key `fit`). They are
states without credit: no derivative runs from one step to the next by them. A learner keeps the mode in which it was
compiled, so compile it under `fit=True`, and evaluate with the model itself under `fit=False`.
"""

import inspect
from typing import Any

import brainstate
from brainstate import ParamState

from foretrace.nn.parameters import checked_size
from foretrace.ops import element_wise
from foretrace.ops.units import ArrayLike


class ScaleAndBias(ParamState):
    """The parameters of a normalisation, `{'scale': ..., 'bias': ...}` or one of the two, marked where they act.

    Examples:
        >>> import jax.numpy as jnp
        >>> ScaleAndBias({"scale": jnp.array([1.0, 2.0]), "bias": jnp.ones(2)}).execute(jnp.ones(2)).tolist()
        [2.0, 3.0]
    """

    def execute(self, x: ArrayLike) -> Any:
        """`x * scale + bias`, as far as there are these."""
        if "scale" in self.value:
            x = x * element_wise(self.value["scale"])
        if "bias" in self.value:
            x = x + element_wise(self.value["bias"])
        return x


class _Marked:
    """Puts `ScaleAndBias` in the place of brainstate's state for these parameters; the rest of the call is the same."""

    def __init__(self, *args: Any, param_type: type = ScaleAndBias, **options: Any) -> None:
        if not callable(getattr(param_type, "execute", None)):
            raise TypeError(
                f"{type(self).__name__}: `param_type` must have a method `execute(x)` that applies scale and bias; "
                f"{param_type!r} has none. Give a subclass of `foretrace.nn.ScaleAndBias`."
            )
        if args or "in_size" in options:
            checked_size(type(self).__name__, "in_size", args[0] if args else options["in_size"])
        super().__init__(*args, param_type=param_type, **options)  # type: ignore[call-arg]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__signature__ = _signature(cls.__bases__[-1])  # type: ignore[attr-defined]


def _signature(base: Any) -> inspect.Signature:
    """How brainstate's class is called, with our class for the parameters."""
    parameters = list(inspect.signature(base.__init__).parameters.values())[1:]
    return inspect.Signature([p.replace(default=ScaleAndBias) if p.name == "param_type" else p for p in parameters])


class _BatchNorm(_Marked):
    """What the batch normalisations share: a check on their axes."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        size, features = self.in_size, self.feature_axes  # type: ignore[attr-defined]
        if tuple(features) != tuple(range(len(size) - len(features), len(size))):
            raise ValueError(
                f"{type(self).__name__}: running statistics need the features on the last axes, but `feature_axis` is "
                f"{tuple(features)} of {len(size)}. Move them to the end, for instance with jnp.moveaxis."
            )


class BatchNorm0d(_BatchNorm, brainstate.nn.BatchNorm0d):
    """Normalises each feature over the examples of a batch, for data `(batch, features)`.

    Under `brainstate.environ.context(fit=True)` the statistics are those of the batch, and the running ones are brought
    up to date; under `fit=False` the running ones are used. `BatchNorm1d`, `BatchNorm2d` and `BatchNorm3d` take data
    with that many axes of space as well, and the statistics run over these too.

    Args:
        in_size: The shape of one example, the features last.
        feature_axis: The axis of the features, the last.
        track_running_stats: Whether to normalise at all; it needs the running statistics.
        epsilon: Added to the variance.
        momentum: How much of the running statistics one batch leaves.
        affine: Whether there are a scale and a bias.
        bias_initializer: The bias at first.
        scale_initializer: The scale at first.
        axis_name: A mapped axis (`jax.vmap`) over which the statistics run as well.
        axis_index_groups: Groups along that axis.
        use_fast_variance: Whether to take the variance as the mean square less the squared mean.
        name: The name of the module.
        dtype: The dtype of the result.
        param_type: The class of the parameters' state.
        mean_type: The class of the running statistics' states.

    Raises:
        ValueError: Features on another axis than the last.

    Examples:
        >>> import jax.numpy as jnp
        >>> layer = BatchNorm0d((1,))
        >>> with brainstate.environ.context(fit=True):
        ...     layer(jnp.array([[3.0], [5.0]])).round(2).tolist()
        [[-1.0], [1.0]]
    """


class BatchNorm1d(_BatchNorm, brainstate.nn.BatchNorm1d):
    """`BatchNorm0d` for data with one axis of space, `(batch, length, features)`.

    Examples:
        >>> import jax.numpy as jnp
        >>> layer = BatchNorm1d((2, 3))
        >>> with brainstate.environ.context(fit=False):
        ...     layer(jnp.ones((4, 2, 3))).shape
        (4, 2, 3)
    """


class BatchNorm2d(_BatchNorm, brainstate.nn.BatchNorm2d):
    """`BatchNorm0d` for data with two axes of space, `(batch, height, width, features)`.

    Examples:
        >>> import jax.numpy as jnp
        >>> layer = BatchNorm2d((2, 2, 3))
        >>> with brainstate.environ.context(fit=False):
        ...     layer(jnp.ones((4, 2, 2, 3))).shape
        (4, 2, 2, 3)
    """


class BatchNorm3d(_BatchNorm, brainstate.nn.BatchNorm3d):
    """`BatchNorm0d` for data with three axes of space, `(batch, height, width, depth, features)`.

    Examples:
        >>> import jax.numpy as jnp
        >>> layer = BatchNorm3d((2, 2, 2, 3))
        >>> with brainstate.environ.context(fit=False):
        ...     layer(jnp.ones((4, 2, 2, 2, 3))).shape
        (4, 2, 2, 2, 3)
    """


class LayerNorm(_Marked, brainstate.nn.LayerNorm):
    """Normalises each example over its features: zero mean, unit variance, then a learned scale and bias.

    The arguments are those of `brainstate.nn.LayerNorm`.

    Args:
        in_size: The shape of one example.
        reduction_axes: The axes that the statistics are taken over.
        feature_axes: The axes along which scale and bias differ.
        epsilon: Added to the variance.
        use_bias: Whether there is a bias.
        use_scale: Whether there is a scale.
        bias_init: The bias at first.
        scale_init: The scale at first.
        param_type: The class of the parameters' state.

    Examples:
        >>> import jax.numpy as jnp
        >>> LayerNorm((4,))(jnp.array([2.0, 2.0, 4.0, 4.0])).round(2).tolist()
        [-1.0, -1.0, 1.0, 1.0]
    """


class RMSNorm(_Marked, brainstate.nn.RMSNorm):
    """Divides each example by the root of its mean square over the features, then applies a learned scale.

    The arguments are those of `brainstate.nn.RMSNorm`.

    Args:
        in_size: The shape of one example.
        epsilon: Added to the mean square.
        use_scale: Whether there is a scale.
        scale_init: The scale at first.
        reduction_axes: The axes that the mean is taken over.
        feature_axes: The axes along which the scale differs.
        param_type: The class of the parameter's state.

    Examples:
        >>> import jax.numpy as jnp
        >>> RMSNorm((2,))(jnp.array([3.0, -3.0])).round(2).tolist()
        [1.0, -1.0]
    """


class GroupNorm(_Marked, brainstate.nn.GroupNorm):
    """Normalises each example over groups of its features (and over its axes of space).

    The arguments are those of `brainstate.nn.GroupNorm`; one example without a batch axis is taken as well.

    Args:
        in_size: The number of features, `(features,)`.
        feature_axis: The axis of the features, the last.
        num_groups: How many groups there are; None if `group_size` is given.
        group_size: How many features a group has.
        epsilon: Added to the variance.
        use_bias: Whether there is a bias.
        use_scale: Whether there is a scale.
        bias_init: The bias at first.
        scale_init: The scale at first.
        param_type: The class of the parameters' state.

    Examples:
        >>> import jax.numpy as jnp
        >>> GroupNorm((4,), num_groups=2)(jnp.array([1.0, 3.0, 7.0, 5.0])).round(2).tolist()
        [-1.0, 1.0, 1.0, -1.0]
    """

    def update(self, x: ArrayLike, *, mask: Any = None) -> Any:
        """The normalised `x`, of shape `(batch, ..., features)` or `(features,)`."""
        if x.ndim > 1:
            return super().update(x, mask=mask)
        return super().update(x[None], mask=None if mask is None else mask[None])[0]
