"""The only file that touches JAX interfaces outside its stable surface.

Everything else imports jaxpr types and helpers from here, so that a change in JAX is met in one place.
"""

import functools
import hashlib
import importlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.core import ShapedArray, eval_jaxpr
from jax.extend.core import (
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Literal,
    Primitive,
    Var,
    get_opaque_trace_state,
    jaxpr_as_fun,
    new_jaxpr_eqn,
    primitives,
)
from jax.extend.source_info_util import summarize as _summarize_source
from jax.interpreters import ad, batching, mlir
from jax.interpreters.partial_eval import dce_jaxpr

Atom: TypeAlias = Var | Literal

_ADDRESS = re.compile(r"0x[0-9a-f]+")
_NO_NAMES = jax.make_jaxpr(lambda: ())().jaxpr.debug_info._replace(arg_names=None, result_paths=None)

__all__ = [
    "Atom",
    "ClosedJaxpr",
    "Jaxpr",
    "JaxprEqn",
    "Literal",
    "Primitive",
    "ShapedArray",
    "Var",
    "ad",
    "all_of",
    "batching",
    "bind_eqn",
    "close_jaxpr",
    "eval_jaxpr",
    "from_first_process",
    "from_processes",
    "get_opaque_trace_state",
    "held_jaxprs",
    "is_complex",
    "is_float",
    "jaxpr_as_fun",
    "live_jaxpr",
    "make_jaxpr_of",
    "mesh_devices",
    "mesh_of",
    "mlir",
    "new_eqn",
    "new_jaxpr",
    "new_jaxpr_eqn",
    "new_var",
    "on_auto_axes",
    "primitives",
    "program_digest",
    "scan_counts",
    "scan_params",
    "source_line",
    "tangent_jaxpr",
    "tangent_rule",
]


def new_var(aval: Any) -> Var:
    """A fresh variable of the given abstract value."""
    return Var(aval)


class _OpenJaxpr(Jaxpr):
    """A jaxpr that remembers which of its inputs are constants.

    JAX 0.11 made a jaxpr and the values of its constants one object, and counts as constants the inputs that have a
    value attached. Here jaxprs are taken apart and put together without values, so the border is kept beside them.
    """

    __slots__ = ("_border",)

    def __init__(self, constvars: Sequence[Var], invars: Sequence[Var], *rest: Any) -> None:
        self._border = (list(constvars), list(invars))
        super().__init__(*self._border, *rest)

    @property
    def constvars(self) -> list[Var]:
        return self._border[0]

    @property
    def invars(self) -> list[Var]:
        return self._border[1]


def new_jaxpr(
    constvars: Sequence[Var], invars: Sequence[Var], outvars: Sequence[Atom], eqns: Sequence[JaxprEqn]
) -> Jaxpr:
    """A jaxpr of these parts, with the effects its equations have. Its constants have no values yet."""
    effects = frozenset().union(*(eqn.effects for eqn in eqns)) if eqns else frozenset()
    return _OpenJaxpr(constvars, invars, list(outvars), list(eqns), effects, _NO_NAMES)


def close_jaxpr(jaxpr: Jaxpr, consts: Sequence[Any] = ()) -> ClosedJaxpr:
    """The jaxpr with the values of its constants, as JAX has it: what the parameters of an equation may hold."""
    plain = Jaxpr(jaxpr.constvars, jaxpr.invars, jaxpr.outvars, jaxpr.eqns, jaxpr.effects, _NO_NAMES)
    return ClosedJaxpr(plain, list(consts))


def held_jaxprs(value: Any) -> list[ClosedJaxpr]:
    """The jaxprs that a parameter of an equation holds, with their constants."""
    if isinstance(value, tuple | list):
        return [jaxpr for item in value for jaxpr in held_jaxprs(item)]
    if isinstance(value, ClosedJaxpr):  # since JAX 0.11 every jaxpr is one
        return [value]
    return [ClosedJaxpr(value, [])] if isinstance(value, Jaxpr) and not value.constvars else []


def live_jaxpr(jaxpr: Jaxpr) -> Jaxpr:
    """The jaxpr without equations that no output needs, also inside bodies of control flow; all inputs stay."""
    inputs = [*jaxpr.constvars, *jaxpr.invars]
    plain = Jaxpr([], inputs, jaxpr.outvars, jaxpr.eqns, jaxpr.effects, _NO_NAMES)
    live, _ = dce_jaxpr(plain, [True] * len(jaxpr.outvars), instantiate=True)
    border = len(jaxpr.constvars)
    return new_jaxpr(live.invars[:border], live.invars[border:], live.outvars, live.eqns)


def scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """How many of a scan's operands are constants and how many are carries; the rest are sliced."""
    if "ft_in" in params:  # JAX 0.12
        constants, carries, _ = params["ft_in"].unpack()
        return len(constants), len(carries)
    return params["num_consts"], params["num_carry"]


def scan_params(params: Mapping[str, Any], body: Jaxpr, num_consts: int) -> dict[str, Any]:
    """The parameters of a scan with another body and so many constants in front of the same carries."""
    changed = {**params, "jaxpr": close_jaxpr(body)}
    if "ft_in" not in params:
        return {**changed, "num_consts": num_consts}
    flattree = importlib.import_module("jax._src.flattree")  # JAX 0.12 has no public way to build one
    num_carry = scan_counts(params)[1]
    counts_in = (num_consts, num_carry, len(body.invars) - num_consts - num_carry)
    counts_out = (num_carry, len(body.outvars) - num_carry)
    trees = (flattree.pack(tuple(map(flattree.nones, counts))) for counts in (counts_in, counts_out))
    return changed | dict(zip(("ft_in", "ft_out"), trees, strict=True))


def new_eqn(
    primitive: Primitive,
    invars: Sequence[Atom],
    outvars: Sequence[Var],
    params: dict[str, Any] | None = None,
    like: JaxprEqn | None = None,
) -> JaxprEqn:
    """An equation, with the source line and context of `like` where one is given."""
    effects = like.effects if like is not None and like.primitive is primitive else frozenset()
    source_info = None if like is None else like.source_info
    ctx = None if like is None else like.ctx
    return new_jaxpr_eqn(list(invars), list(outvars), primitive, dict(params or {}), effects, source_info, ctx)


def bind_eqn(eqn: JaxprEqn, *args: Any) -> list[Any]:
    """Runs one equation on values and returns its outputs as a list."""
    params = eqn.primitive.get_bind_params(eqn.params)
    with eqn.ctx.manager:
        out = eqn.primitive.bind(*args, **params)
    return list(out) if eqn.primitive.multiple_results else [out]


def tangent_jaxpr(eqn: JaxprEqn) -> tuple[ClosedJaxpr, list[int], list[int]]:
    """The tangent rule of a `custom_jvp_call` as a jaxpr.

    Returns:
        The jaxpr from operands and tangents to outputs and tangents; the operands that have a tangent; the outputs that
        have one.
    """
    constant = [not is_float(atom.aval) for atom in eqn.invars]
    jaxpr, consts, zeros = eqn.params["jvp_jaxpr_fun"].call_wrapped(*constant)
    active = [i for i, fixed in enumerate(constant) if not fixed]
    return close_jaxpr(jaxpr, consts), active, [k for k, zero in enumerate(zeros) if not zero]


def tangent_rule(eqn: JaxprEqn) -> tuple[Callable[..., Any], Any] | None:
    """The user's function behind a `custom_jvp_call` and the tree of its arguments, to know it again by.

    None where it cannot be told, as with static arguments, which are bound to the rule.
    """
    try:
        cells = [cell.cell_contents for cell in eqn.params["jvp_jaxpr_fun"].f.__closure__]
        thunk = next(content for content in cells if hasattr(content, "__code__"))
        rule = dict(zip(thunk.__code__.co_freevars, thunk.__closure__, strict=True))["jvp"].cell_contents
        ((_, (_, _, tree, _)),) = rule.transforms
        return rule.f, tree
    except (AttributeError, KeyError, StopIteration, TypeError, ValueError):
        return None


def make_jaxpr_of(fun: Callable[..., Any], avals: Sequence[Any]) -> ClosedJaxpr:
    """Traces `fun` on abstract values given by shape and dtype."""
    return jax.make_jaxpr(fun)(*(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals))


def mesh_of(values: Any) -> Any:
    """The mesh that the arrays of a tree are placed on, traced or not; None where they are on none."""
    meshes = (jax.typeof(leaf).sharding.mesh for leaf in jax.tree.leaves(values) if isinstance(leaf, jax.Array))
    return next((mesh for mesh in meshes if not mesh.empty), None)


def mesh_devices() -> int:
    """Over how many devices XLA may share out what is being traced; 1 where it is not told of any."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return 1
    pairs = zip(mesh.axis_sizes, mesh.axis_types, strict=True)
    return math.prod(size for size, kind in pairs if kind is jax.sharding.AxisType.Auto)


def one_processor() -> bool:
    """Whether what is being traced runs on one CPU, whose cache decides what is fast."""
    return jax.default_backend() == "cpu" and mesh_devices() == 1


def on_auto_axes(function: Callable[..., Any], mesh: Any, shardings: Callable[[], Any]) -> Callable[..., Any]:
    """A function whose arguments, a tree of arrays, are placed on a mesh, with all axes left to XLA.

    Args:
        function: The function.
        mesh: From `mesh_of`.
        shardings: Gives the shardings of its result, or a prefix; asked for where the mesh has explicit axes.
    """

    pairs = zip(mesh.axis_names, mesh.axis_types, strict=True)
    explicit = tuple(name for name, kind in pairs if kind is jax.sharding.AxisType.Explicit)
    if explicit:
        function = jax.sharding.auto_axes(function, axes=explicit, out_sharding=shardings())

    def called(*args: Any) -> Any:
        with jax.sharding.use_abstract_mesh(mesh):
            return function(*args)

    return called


def all_of(array: Any) -> np.ndarray:
    """An array of many devices as a whole; where it lies in several processes, all of them must ask."""
    if not isinstance(array, jax.Array) or array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array)
    return np.asarray(_multihost().process_allgather(array, tiled=True))


def from_processes(array: np.ndarray) -> np.ndarray:
    """The arrays of all processes, of one shape, along a new first axis."""
    return np.asarray(_multihost().process_allgather(array))


def from_first_process(data: bytes) -> bytes:
    """The bytes that the first of several processes gives, in all of them; what the others give does not count."""
    sent = lambda data: np.asarray(_multihost().broadcast_one_to_all(np.frombuffer(data, np.uint8))).tobytes()
    length = int.from_bytes(sent(len(data).to_bytes(8, "little")), "little")
    return sent(data.ljust(length)[:length])


def _multihost() -> Any:
    return importlib.import_module("jax.experimental.multihost_utils")


def is_complex(aval: Any) -> bool:
    """Whether an aval (or an array) holds complex numbers."""
    return bool(jax.numpy.issubdtype(aval.dtype, np.complexfloating))


def is_float(aval: Any) -> bool:
    """Whether values of this kind carry derivatives."""
    return hasattr(aval, "dtype") and _is_float_dtype(aval.dtype)


@functools.cache
def _is_float_dtype(dtype: Any) -> bool:
    return bool(jax.dtypes.issubdtype(dtype, np.inexact))


def source_line(eqn: JaxprEqn) -> str:
    """Where in the user's code an equation was written, as `file:line (function)`."""
    return _summarize_source(eqn.source_info)


def program_digest(program: Any, known: dict[int, str] | None = None) -> str:
    """A digest of what a jaxpr computes: operations, shapes, parameters and constants, those of jaxprs within included.

    It is the same in every process: names of functions and variables, addresses and source lines are left out. Python
    functions among the parameters, which an operation calls back or differentiates by, have no value to look at.

    Args:
        program: A jaxpr, closed or not.
        known: Digests of jaxprs by their `id`, so that one which occurs many times is read once.
    """
    known = {} if known is None else known
    if id(program) in known:
        return known[id(program)]
    jaxpr, numbers = getattr(program, "jaxpr", program), dict[Any, int]()
    number = lambda var: numbers.setdefault(var, len(numbers))
    found = hashlib.sha256()

    def take(*values: Any) -> None:
        for value in values:
            found.update(_stable_bytes(value, known) + b";")

    take(len(jaxpr.invars), *getattr(program, "consts", ()))
    for var in (*jaxpr.constvars, *jaxpr.invars):
        take(number(var), str(var.aval))
    for eqn in jaxpr.eqns:
        take(eqn.primitive.name, {name: value for name, value in eqn.params.items() if name != "name"})
        take(*(atom.val if isinstance(atom, Literal) else number(atom) for atom in eqn.invars))
        for var in eqn.outvars:
            take(number(var), str(var.aval))
    take(*(atom.val if isinstance(atom, Literal) else number(atom) for atom in jaxpr.outvars))
    known[id(program)] = found.hexdigest()
    return known[id(program)]


def _stable_bytes(value: Any, known: dict[int, str]) -> bytes:
    """A parameter or a constant of a jaxpr as bytes that are the same in every process."""
    if hasattr(value, "eqns"):
        return program_digest(value, known).encode()
    if isinstance(value, dict):
        return b"".join(_stable_bytes(item, known) for item in sorted(value.items(), key=lambda item: str(item[0])))
    if isinstance(value, tuple | list):
        return b"(" + b",".join(_stable_bytes(part, known) for part in value) + b")"
    if isinstance(value, set | frozenset):
        return b"".join(sorted(_stable_bytes(part, known) for part in value))
    if hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, ShapedArray | type):
        key = jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(value) if key else value)
        return f"{value.dtype}{array.shape}".encode() + array.tobytes()
    if hasattr(value, "call_wrapped") or (callable(value) and not isinstance(value, type)):
        return b"function"
    return _ADDRESS.sub("", str(value)).encode()
