"""The marked primitive: an operator that a compiler can find again, whatever JAX does around it.

An `ETPPrimitive` wraps one function, its implementation. Every rule of JAX follows from that function: the shape of
the result by abstract evaluation, the machine code by tracing it, the derivative by differentiating it, the transpose
by transposing it. Batching binds the *same* primitive again, with the mapped axes of the operands noted in the
parameter `vmap_axes`, so that an operator stays marked under any number of `vmap`s. Derivatives are plain JAX: the
mark stands on the value alone.

Beside the function a primitive carries what the compiler asks: which operands are trained, which one is the data,
which output is `y`, whether `y` mixes positions. The registry lists all primitives by name.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from foretrace._checks import require_flag
from foretrace._jax import Primitive, ShapedArray, ad, batching, mlir
from foretrace._optional import view

TrainableInvarsFn = Callable[[Mapping[str, Any]], dict[str, int]]
VmapAxes = tuple[tuple[int | None, ...], ...]

etp_primitives: dict[str, "ETPPrimitive"] = {}

_is_unmarked: contextvars.ContextVar[bool] = contextvars.ContextVar("is_unmarked", default=False)


@contextlib.contextmanager
def unmarked() -> Iterator[None]:
    """Operators called inside compute the same without a mark, so that their weights get no trace.

    What was traced before by `jax.jit` inside keeps its marks.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> from foretrace.ops import matmul
        >>> def product(x, weight):
        ...     with unmarked():
        ...         return matmul(x, weight)
        >>> [eqn.primitive.name for eqn in jax.make_jaxpr(product)(jnp.ones(3), jnp.ones((3, 2))).eqns]
        ['dot_general']
    """
    token = _is_unmarked.set(True)
    try:
        yield
    finally:
        _is_unmarked.reset(token)


class ETPPrimitive(Primitive):
    """A marked operator and the facts that the compiler reads. `register_primitive` makes and lists one.

    The arguments are those of `register_primitive`.

    Attributes:
        impl_fn: What the operator computes, in plain JAX.
        batched: Whether the leading axis of `x` and `y` is said to be a batch axis.
        gradient_enabled: Whether the operator works position by position.
        x_invar_index: Which operand is the data, or None if there is none.
        y_outvar_index: Which output is `y`.
        linear: Whether `y` is linear in every trained operand.
        etp: Always true: how passes below this layer recognise a marked operator.
    """

    etp = True

    def __init__(
        self,
        name: str,
        impl_fn: Callable[..., Any],
        *,
        batched: bool = False,
        gradient_enabled: bool = False,
        trainable_invars_fn: TrainableInvarsFn | None = None,
        x_invar_index: int | None = 0,
        y_outvar_index: int = 0,
        linear: bool = True,
    ) -> None:
        super().__init__(name)
        self.impl_fn = impl_fn
        self.batched = batched
        self.gradient_enabled = gradient_enabled
        self.trainable_invars_fn = trainable_invars_fn
        self.x_invar_index = x_invar_index
        self.y_outvar_index = y_outvar_index
        self.linear = linear
        # JAX must know before the first call whether a tuple comes back; only then can `y` be other than output 0.
        self.multiple_results = y_outvar_index > 0
        _install_rules(self)

    @property
    def mixing(self) -> bool:
        """Whether one position of `y` can depend on several positions of `x`."""
        return not self.gradient_enabled

    def trainable_invars(self, params: Mapping[str, Any]) -> dict[str, int]:
        """The trained operands of an equation with these parameters: their place among the operands, by name."""
        if self.trainable_invars_fn is not None:
            return self.trainable_invars_fn(params)
        return {"weight": 0 if self.x_invar_index is None else 1}

    register_etp_rules = view("views:register_etp_rules", "Takes the trace rules of braintrace.", method=True)
    register_dt_to_t = view("views:register_dt_to_t", "Takes one of them.", method=True)
    register_yw_to_w = view("views:register_yw_to_w", "Takes one of them.", method=True)
    register_xy_to_dw = view("views:register_xy_to_dw", "Takes one of them.", method=True)
    register_init_drtrl = view("views:register_init_drtrl", "Takes one of them.", method=True)
    register_init_pp = view("views:register_init_pp", "Takes one of them.", method=True)

    def bind(self, *args: Any, **params: Any) -> Any:
        """Applies the operator, marked; plainly inside of `unmarked`."""
        return self.plain(*args, **params) if _is_unmarked.get() else super().bind(*args, **params)

    def plain(self, *args: Any, **params: Any) -> Any:
        """What `bind` computes, as unmarked JAX: the function to differentiate, vmap or transpose."""
        vmap_axes: VmapAxes = params.pop("vmap_axes", ())
        function = functools.partial(self.impl_fn, **params)
        for in_axes in vmap_axes:  # the innermost `vmap` comes first
            function = jax.vmap(function, in_axes=in_axes, out_axes=0)
        return function(*args)


def register_primitive(
    name: str,
    impl_fn: Callable[..., Any],
    *,
    batched: bool = False,
    gradient_enabled: bool = False,
    trainable_invars_fn: TrainableInvarsFn | None = None,
    x_invar_index: int | None = 0,
    y_outvar_index: int = 0,
) -> ETPPrimitive:
    """Makes a marked operator of one function; everything else, trace rules included, follows from it.

    Args:
        name: The operator's name, unique in the registry. Repeating a registration gives the same primitive back.
        impl_fn: `impl_fn(x, weight, **params)` in plain JAX, linear in its weight. Parameters must be hashable.
        batched: Says that the leading axis of `x` and `y` is a batch axis. It is a note for readers of the graph:
            positions are found by analysis and an operator stays marked under `vmap`, so no result depends on it.
        gradient_enabled: Says that the operator works position by position, as an identity or a gain does, so that
            a path through it counts as direct. By default an operator mixes positions and cuts such a path.
        trainable_invars_fn: From the parameters of an equation to the trained operands, `{name: index}`. By default
            `{'weight': 1}`, or `{'weight': 0}` for an operator without data.
        x_invar_index: Which operand is the data; None for an operator of its weight alone.
        y_outvar_index: Which output is `y`. If it is above 0, `impl_fn` returns a tuple.

    Returns:
        The primitive, called by `primitive.bind(x, weight, **params)`.

    Examples:
        >>> import jax.numpy as jnp
        >>> def scaled(x, weight, *, scale):
        ...     return scale * (x @ weight)
        >>> scaled_p = register_primitive("docs_scaled", scaled)
        >>> scaled_p.bind(jnp.ones(3), jnp.ones((3, 2)), scale=2.0).tolist()
        [6.0, 6.0]
    """
    _check_registration(name, impl_fn, trainable_invars_fn, x_invar_index, y_outvar_index)
    require_flag("batched", batched)
    require_flag("gradient_enabled", gradient_enabled)
    facts: dict[str, Any] = {
        "batched": batched,
        "gradient_enabled": gradient_enabled,
        "trainable_invars_fn": trainable_invars_fn,
        "x_invar_index": x_invar_index,
        "y_outvar_index": y_outvar_index,
    }
    known = etp_primitives.get(name)
    if known is None:
        known = etp_primitives[name] = ETPPrimitive(name, impl_fn, **facts)
    elif known.impl_fn is not impl_fn or any(getattr(known, fact) != value for fact, value in facts.items()):
        raise ValueError(
            f"register_primitive: an operator `{name}` exists already, with the implementation {known.impl_fn!r}; "
            f"got {impl_fn!r} with {facts}. Give the new operator a name of its own."
        )
    return known


def is_etp_primitive(primitive: Any) -> bool:
    """Whether a primitive is a marked operator."""
    return isinstance(primitive, ETPPrimitive)


def get_etp_primitive(name: str) -> ETPPrimitive:
    """The marked operator of this name; a `KeyError` lists those that exist."""
    if name not in etp_primitives:
        raise KeyError(f"No operator `{name}` is registered. Known: {', '.join(sorted(etp_primitives))}.")
    return etp_primitives[name]


def _check_registration(
    name: Any, impl_fn: Any, trainable_invars_fn: Any, x_invar_index: Any, y_outvar_index: Any
) -> None:
    if not isinstance(name, str) or not name:
        raise TypeError(f"register_primitive: the name must be a non-empty string, got {name!r}.")
    if not callable(impl_fn):
        raise TypeError(
            f"register_primitive: the implementation of `{name}` must be a function impl_fn(x, weight, **params), "
            f"got {impl_fn!r}."
        )
    if trainable_invars_fn is not None and not callable(trainable_invars_fn):
        raise TypeError(
            f"register_primitive: trainable_invars_fn of `{name}` must be a function from an equation's parameters "
            f"to {{name: operand index}}, got {trainable_invars_fn!r}."
        )
    for label, index in (("x_invar_index", x_invar_index), ("y_outvar_index", y_outvar_index)):
        optional = label == "x_invar_index" and index is None
        if not optional and (not isinstance(index, int) or isinstance(index, bool) or index < 0):
            raise ValueError(f"register_primitive: {label} of `{name}` must be an index from 0 on, got {index!r}.")


def _install_rules(primitive: ETPPrimitive) -> None:
    primitive.def_impl(primitive.plain)
    primitive.def_abstract_eval(functools.partial(_abstract_eval, primitive))
    mlir.register_lowering(primitive, mlir.lower_fun(primitive.plain, multiple_results=primitive.multiple_results))
    ad.primitive_jvps[primitive] = functools.partial(_jvp, primitive)
    ad.primitive_transposes[primitive] = functools.partial(_transpose, primitive)
    batching.primitive_batchers[primitive] = functools.partial(_batch, primitive)


def _abstract_eval(primitive: ETPPrimitive, *avals: Any, **params: Any) -> Any:
    specs = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=getattr(a, "weak_type", False)) for a in avals]
    out = jax.eval_shape(functools.partial(primitive.plain, **params), *specs)
    found = f"{len(out)} arrays" if isinstance(out, (tuple, list)) else f"a {type(out).__name__}"
    if primitive.multiple_results:
        if not isinstance(out, (tuple, list)) or len(out) <= primitive.y_outvar_index:
            raise TypeError(
                f"Operator `{primitive.name}` names output {primitive.y_outvar_index} as its y, but its implementation "
                f"returns {found}. Return a tuple that has this output, or register it with another y_outvar_index."
            )
        return [ShapedArray(o.shape, o.dtype, weak_type=o.weak_type) for o in out]
    if not hasattr(out, "shape"):
        raise TypeError(
            f"The implementation of operator `{primitive.name}` returns {found}, where one array is expected. "
            "Return the array y alone; of several outputs, y must not be the first (y_outvar_index above 0)."
        )
    return ShapedArray(out.shape, out.dtype, weak_type=out.weak_type)


def _of_operands(primitive: ETPPrimitive, args: Sequence[Any], places: Sequence[int], params: dict[str, Any]) -> Any:
    """The plain operator as a function of the operands at `places`, the others fixed."""

    def function(*chosen: Any) -> Any:
        operands = list(args)
        for place, value in zip(places, chosen, strict=True):
            operands[place] = value
        return primitive.plain(*operands, **params)

    return function


def _jvp(primitive: ETPPrimitive, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    active = [
        i for i, t in enumerate(tangents) if type(t) is not ad.Zero and getattr(t, "dtype", None) != jax.dtypes.float0
    ]
    out = primitive.bind(*primals, **params)
    if not active:
        return out, jax.tree.map(jnp.zeros_like, out)
    function = _of_operands(primitive, primals, active, params)
    _, tangent = jax.jvp(function, [primals[i] for i in active], [tangents[i] for i in active])
    return out, list(tangent) if primitive.multiple_results else tangent


def _transpose(primitive: ETPPrimitive, cotangent: Any, *args: Any, **params: Any) -> list[Any]:
    unknown = [i for i, arg in enumerate(args) if ad.is_undefined_primal(arg)]
    avals = [jax.ShapeDtypeStruct(args[i].aval.shape, args[i].aval.dtype) for i in unknown]
    result: list[Any] = [None] * len(args)
    cotangents = tuple(cotangent) if primitive.multiple_results else cotangent
    if all(type(ct) is ad.Zero for ct in jax.tree.leaves(cotangents, is_leaf=_is_zero)):
        found: Sequence[Any] = [ad.Zero(args[i].aval) for i in unknown]
    else:
        cotangents = jax.tree.map(ad.instantiate_zeros, cotangents, is_leaf=_is_zero)
        found = jax.linear_transpose(_of_operands(primitive, args, unknown, params), *avals)(cotangents)
    for place, value in zip(unknown, found, strict=True):
        result[place] = value
    return result


def _is_zero(value: Any) -> bool:
    return type(value) is ad.Zero


def _batch(primitive: ETPPrimitive, args: Sequence[Any], axes: Sequence[int | None], **params: Any) -> tuple[Any, Any]:
    levels: VmapAxes = (*params.pop("vmap_axes", ()), tuple(axes))
    out = primitive.bind(*args, vmap_axes=levels, **params)
    return out, [0] * len(out) if primitive.multiple_results else 0
