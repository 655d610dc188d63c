"""Low-rank RTRL: D-RTRL's direct part of the influence, and a sketch of a chosen rank of all the rest.

With `J_t` and `G_t` the derivatives of the whole step by previous states and by parameters, RTRL carries
`P_t = J_t P_{t-1} + G_t`, and D-RTRL the direct part `E_t` of it. The rest is kept as `P_t - E_t ~ Q_t B_t`, where
`Q_t` has `rank` orthonormal columns, for every sample of a batch by itself.

Steps are taken in windows, `every` of them at most. Within a window credit is by reverse mode: `c`, the derivative of
the window's losses by the states before it, meets `E + Q B` there. At its end the rest is

    R = Phi (E + Q B) + sum_k Phi_k G_k - E'        with `Phi` the product of the window's Jacobians `J`

of which a row `v^T R` costs one reverse pass over the window. One step of subspace iteration from the last basis finds
the directions `Q'` that matter, about `orth(R R^T Q)`, and `B' = Q'^T R` keeps them. Nothing is drawn at random, and
no array is as large as the rest itself.

The certificate. What is missing, `X = P - E - Q B`, becomes `X' = Phi X + (1 - Q' Q'^T) R` in a window, exactly. If
`X X^T <= S` (as symmetric matrices), then for any `a > 0`

    X' X'^T <= (1 + a) Phi S Phi^T + (1 + 1/a) (1 - Q' Q'^T) R R^T (1 - Q' Q'^T) = S',

since `(x + y)(x + y)^T <= (1 + a) x x^T + (1 + 1/a) y y^T`; the `a` of least trace is taken. Credit within a window is
exact, so its gradient misses `c^T X` and no more, and `|c^T X| = sqrt(c^T X X^T c) <= sqrt(c^T S c)`. The certificate
is the sum of these over windows and samples.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from foretrace._checks import require_count, require_flag
from foretrace._jax import is_complex, is_float
from foretrace.engine.plan import Plan
from foretrace.engine.slots import total
from foretrace.errors import NotSupportedError
from foretrace.rules.by_sample import by_sample
from foretrace.rules.d_rtrl import D_RTRL, Eligibility, add_credited
from foretrace.rules.rule import Block, Rule
from foretrace.rules.whole_step import (
    Weights,
    added,
    check_memory,
    hidden_dtype,
    hidden_size,
    join,
    join_cotangents,
    join_hidden,
    split_hidden,
    weights_of,
)
from foretrace.rules.window import Window


class Bound(NamedTuple):
    """What bounds the error of the gradient.

    Attributes:
        gram: `S`, for each sample a matrix of its states: no less than what is missing times its transpose.
        total: The bound on the error of all gradients so far.
    """

    gram: jax.Array
    total: jax.Array


class Sketch(NamedTuple):
    """What low-rank RTRL keeps.

    Attributes:
        direct: The traces of D-RTRL.
        basis: `Q`, for each sample a matrix of its states by `rank`.
        rows: `B`, for each weight that has a rest `(samples, rank, *shape)`.
        bound: What bounds the error; None where that was not asked for.
    """

    direct: Eligibility
    basis: jax.Array
    rows: list[jax.Array]
    bound: Bound | None


@dataclass(frozen=True)
class LowRank(Rule):
    """Low-rank (sketched) RTRL: what D-RTRL keeps, and a sketch of chosen rank of what it leaves out.

    Keeps: the traces of D-RTRL, and for each sample `rank` rows of the size of the parameters. Memory: (1 + rank) x
    parameters x batch. Time: about `rank` reverse passes; with `certify`, one for every state element of a sample.
    `rank=0` is D-RTRL, and a rank of the number of a sample's state elements is RTRL.
    Paper: a sparse part of the influence and a sketch of the rest are those of sketched RTRL, 2026.

    Attributes:
        rank: How many directions of the states the sketch keeps.
        every: Steps between two compressions, at most: the end of a call is one, since parameters may change there.
        certify: Whether an upper bound on the error of the gradient is carried along, for `learner.certificate`.
        memory_limit: The most bytes that the sketch may take, and with `certify` the rows of one window.

    Examples:
        >>> from foretrace.rules import LowRank
        >>> LowRank(rank=4)
        LowRank(rank=4, every=128, certify=False, memory_limit=2147483648)
    """

    name: ClassVar[str] = "LowRank"
    rank: int = 16
    every: int = 128
    certify: bool = False
    memory_limit: int = 2**31

    def __post_init__(self) -> None:
        require_count("rank", self.rank, "directions", 0)
        require_count("every", self.every, "steps")
        require_flag("certify", self.certify)
        require_count("memory_limit", self.memory_limit, "bytes")

    @property
    def block_multiple(self) -> int:
        return self.every

    def init(self, plan: Plan) -> Sketch:
        _refuse(plan)
        own, dtype = by_sample(plan), hidden_dtype(plan)
        samples, states = own.elements.shape
        rank = min(self.rank, states) if own.places else 0
        self._check(plan, rank)
        shapes = [plan.weight_vars[place].aval for place in own.places]
        rows = [jnp.zeros((samples, rank, *aval.shape), jnp.result_type(aval.dtype, dtype)) for aval in shapes]
        basis = jnp.broadcast_to(_cosines(states, rank).astype(dtype), (samples, states, rank))
        bound = Bound(jnp.zeros((samples, states, states), dtype), jnp.zeros((), dtype)) if self.certify else None
        return Sketch(_DIRECT.init(plan), basis, rows, bound)

    def _check(self, plan: Plan, rank: int) -> None:
        own, dtype = by_sample(plan), jnp.dtype(hidden_dtype(plan))
        samples, states = own.elements.shape
        weights = sum(plan.weight_vars[place].aval.size for place in own.places)
        rows = states if self.certify else rank
        kept = f"{rows:,} rows of {weights:,} weights for {samples:,} samples in {dtype}"
        size = samples * rows * weights * dtype.itemsize
        check_memory(self.name, kept, size, self.memory_limit, "a smaller `rank`, no `certify`, or `D_RTRL`")

    def advance(
        self, plan: Plan, params: Sequence[Any], block: Block, trace: Sketch
    ) -> tuple[list[jax.Array] | None, Sketch]:
        if not trace.basis.shape[-1] and trace.bound is None:
            gradients, direct = _DIRECT.advance(plan, params, block, trace.direct)
            return gradients, trace._replace(direct=direct)
        # Where rows are known to be zeros, XLA fuses their products into something that reads memory it never wrote.
        trace = trace._replace(rows=jax.lax.optimization_barrier(trace.rows))
        weights, block = weights_of(plan, params), _floating(plan, block)
        step = functools.partial(self._window, plan, params, weights)
        learns = block.cotangents is not None
        carry = (trace, [jnp.zeros(jnp.shape(p), jnp.result_type(p)) for p in params] if learns else None)
        count, left = divmod(jax.tree.leaves(block.steps)[0].shape[0], self.every)
        cut = lambda begin, size: jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, begin, size), block)
        if count > 1:
            carry, _ = jax.lax.scan(
                lambda carry, k: (step(carry, cut(k * self.every, self.every)), None), carry, jnp.arange(count)
            )
        elif count:
            carry = step(carry, cut(0, self.every))
        trace, gradients = step(carry, cut(count * self.every, left)) if left else carry
        return gradients, trace

    def _window(self, plan: Plan, params: Sequence[Any], weights: Weights, carry: Any, block: Block) -> Any:
        """One window: the gradient of its losses, and the compression at its end."""
        trace, summed = carry
        window, bound, sketched = Window(plan, weights, block.steps), trace.bound, trace.basis.shape[-1] > 0
        by_direct, direct = _DIRECT.advance(plan, params, block if not sketched else _lossless(block), trace.direct)
        if summed is not None:
            by_weights, start = window.pull(jnp.zeros(hidden_size(plan), hidden_dtype(plan)), block.cotangents)
            found = weights.pull_back(added(by_weights, _credited(plan, trace, start)))
            if bound is not None:
                missed = _norm_of_missing(plan, bound.gram, start)
                if by_direct is not None:  # D-RTRL leaves out mixing within the window, too
                    missed = missed + _norm([a - b for a, b in zip(found, by_direct, strict=True)])
                bound = bound._replace(total=bound.total + missed.astype(bound.total.dtype))
            summed = added(summed, found if by_direct is None else by_direct)
        rest, basis, rows = _Rest(plan, window, trace, direct), trace.basis, trace.rows
        if sketched:
            recent = jax.tree.map(lambda a: a[-RECENT:], block.steps)
            basis = _leading(plan, Window(plan, weights, recent), trace, direct)
            rows, _ = rest.rows(jnp.swapaxes(basis, 1, 2))
        if bound is not None:
            bound = bound._replace(gram=rest.missing(bound.gram, basis, rows))
        return Sketch(direct, basis, rows, bound), summed

    def credit(self, plan: Plan, params: Sequence[Any], trace: Sketch, signal: Sequence[jax.Array]) -> list[jax.Array]:
        return plan.pull_back(params, _credited(plan, trace, join_cotangents(signal)))

    def certificate(self, plan: Plan, trace: Sketch) -> jax.Array:
        if trace.bound is None:
            raise NotSupportedError(
                "This `LowRank` carries no bound on its error, which takes a reverse pass for every state element: ask "
                "for it by `certify=True`."
            )
        return trace.bound.total


_DIRECT = D_RTRL()
UNTOLD = 1e-5  # of the largest column: what counts as no direction
RECENT = 8  # steps at the end of a window that tell the directions of its rest


def _lossless(block: Block) -> Block:
    return replace(block, cotangents=None)


def _floating(plan: Plan, block: Block) -> Block:
    """The block without the cotangents of outputs that have no derivative."""
    if block.cotangents is None:
        return block
    usable = [is_float(getattr(atom, "aval", atom)) for atom in plan.program.output_outvars]
    outputs = [c if one else None for c, one in zip(block.cotangents.outputs, usable, strict=True)]
    return replace(block, cotangents=replace(block.cotangents, outputs=outputs))


def _leading(plan: Plan, recent: Window, trace: Sketch, direct: Eligibility) -> jax.Array:
    """An orthonormal basis of about the directions in which the rest is largest.

    One step of subspace iteration, `orth(R R^T Q)`. For that the products of rows are taken where the weights meet
    data, and not weight by weight: what enters at two steps is as much alike as the states before them.
    """
    own = by_sample(plan)
    hidden = join_hidden(recent.steps.hidden, lead=1)[:, own.elements]
    alike = 1 + jnp.einsum("asm,bsm->sab", hidden, hidden)
    found, transpose = jax.vjp(_each(recent.mixing), own.spread(jnp.swapaxes(trace.basis, 1, 2)))
    arriving, starts = found
    # Of complex rows the real parts of products with conjugates are taken: they are rows by two real weights each.
    by_y = own.of_steps(alike, [jnp.conj(y) for y in arriving.y])
    flat = [rows.reshape(*rows.shape[:2], math.prod(rows.shape[2:])) for rows in trace.rows]
    gram = total([jnp.real(rows @ jnp.conj(jnp.swapaxes(rows, 1, 2))) for rows in flat]).astype(starts.dtype)
    sketched = own.collect(starts) @ trace.basis @ gram @ jnp.swapaxes(trace.basis, 1, 2)
    (columns,) = transpose((arriving._replace(y=by_y), own.spread(sketched)))
    columns = jnp.swapaxes(own.collect(columns), 1, 2)
    columns = columns.astype(jnp.promote_types(columns.dtype, jnp.float32))  # there is no QR of half precision
    # Where the rest has fewer directions than the basis, or is no more than what rounding leaves of the traces that
    # were taken out of it, the others are told by these cosines and not by rounding.
    largest = jnp.max(jnp.abs(columns), axis=(1, 2), keepdims=True)
    squares = total(
        [jnp.sum(jnp.square(jnp.abs(e).astype(columns.dtype))) for e in jax.tree.leaves(direct.e)] or [jnp.zeros(())]
    )
    limits = jnp.finfo(columns.dtype)
    begin = _cosines(*columns.shape[1:]).astype(columns.dtype)
    basis, _ = jnp.linalg.qr(columns + (UNTOLD * largest + limits.eps * squares + limits.tiny) * begin)
    return basis.astype(trace.basis.dtype)


class _Rest:
    """`R` at the end of a window: what the sketch and the window make of the influence, beyond its direct part.

    Args:
        plan: The plan.
        window: The derivatives of the window.
        before: What was kept before it.
        direct: The traces of D-RTRL after it.
    """

    def __init__(self, plan: Plan, window: Window, before: Sketch, direct: Eligibility) -> None:
        self.plan, self.window, self.before, self.direct = plan, window, before, direct
        self.own = by_sample(plan)

    def rows(self, vectors: jax.Array) -> tuple[list[jax.Array], jax.Array]:
        """`v^T R` and `v^T Phi` for vectors `(samples, any number, states)` of each sample's states."""
        by_pass, starts = _each(self._rows)(self.own.spread(vectors))
        found, starts = map(self.own.parted, by_pass), self.own.collect(starts)
        shares = starts @ self.before.basis
        return [(a + _mixed(shares, b)).astype(b.dtype) for a, b in zip(found, self.before.rows, strict=True)], starts

    def _rows(self, end: jax.Array) -> tuple[list[jax.Array], jax.Array]:
        """Rows but for the sketch: by the window's own steps, and by the traces of D-RTRL before and after it."""
        arriving, start = self.window.arriving(end)
        found = self.own.gradients(self.window, arriving)
        self.own.add_direct(self.before.direct, start, found)
        self.own.add_direct(self.direct, -end, found)
        return found, start

    def missing(self, gram: jax.Array, basis: jax.Array, rows: Sequence[jax.Array]) -> jax.Array:
        """`S` after the window."""
        if not self.own.places:
            return gram
        samples, states = self.own.elements.shape
        every, jacobian = self.rows(jnp.broadcast_to(jnp.eye(states, dtype=basis.dtype), (samples, states, states)))
        lost = [a - _mixed(basis, b) for a, b in zip(every, rows, strict=True)]
        by_params = _each(self._by_params)(lost).astype(gram.dtype)
        return _sum_bound(jacobian @ gram @ jnp.swapaxes(jacobian, 1, 2), by_params @ jnp.swapaxes(by_params, 1, 2))

    def _by_params(self, rows: Sequence[jax.Array]) -> jax.Array:
        gradients = self.plan.zero_gradients()
        for place, row in zip(self.own.places, rows, strict=True):
            gradients[place] = row.astype(gradients[place].dtype)
        found = self.window.weights.pull_back(gradients)
        return join([found[place] for place in self.own.params])


def _each(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of each vector of each sample, side by side."""
    return jax.vmap(jax.vmap(function))


def _mixed(shares: jax.Array, rows: jax.Array) -> jax.Array:
    """Sums of each sample's rows: `(samples, k, rank)` by `(samples, rank, *shape)`, as products of two matrices."""
    flat = shares.astype(rows.dtype) @ rows.reshape(*rows.shape[:2], math.prod(rows.shape[2:]))
    return flat.reshape(*shares.shape[:2], *rows.shape[2:])


def _sum_bound(one: jax.Array, two: jax.Array) -> jax.Array:
    """The bound of least trace on `(x + y)(x + y)^T`, given those on `x x^T` and `y y^T`."""
    first, second = (jnp.sqrt(jnp.trace(m, axis1=1, axis2=2))[:, None, None] for m in (one, two))
    over = lambda length: jnp.where(length > 0, (first + second) / jnp.where(length > 0, length, 1), 0)
    return over(first) * one + over(second) * two


def _credited(plan: Plan, trace: Sketch, signal: jax.Array) -> list[jax.Array]:
    """The gradients of the weights by a signal on the states, a vector, through what is kept of the past."""
    gradients = plan.zero_gradients()
    _add_direct(plan, trace.direct, signal, gradients)
    own = by_sample(plan)
    shares = jnp.einsum("sm,smr->sr", signal[own.elements], trace.basis)
    for place, rows in zip(own.places, trace.rows, strict=True):
        part = jnp.einsum("sr,sr...->...", shares.astype(rows.dtype), rows)
        gradients[place] = (gradients[place] + part).astype(gradients[place].dtype)
    return gradients


def _add_direct(plan: Plan, direct: Eligibility, signal: jax.Array, gradients: list[jax.Array]) -> None:
    states = split_hidden(plan, signal)
    slots = [group.cotangent_slots(plan.of_group(group, states)) for group in plan.graph.hidden_groups]
    add_credited(plan.links, direct.e, slots, gradients)


def _norm_of_missing(plan: Plan, gram: jax.Array, signal: jax.Array) -> jax.Array:
    """The most that the gradient by a signal on the states can miss."""
    own = signal[by_sample(plan).elements]
    return jnp.sum(jnp.sqrt(jnp.maximum(jnp.einsum("sm,smn,sn->s", own, gram, own), 0)))


def _norm(values: Sequence[jax.Array]) -> jax.Array:
    return jnp.sqrt(sum((jnp.sum(jnp.square(v)) for v in values), start=jnp.zeros(())))


def _cosines(states: int, rank: int) -> jax.Array:
    """An orthonormal basis to begin with: the first discrete cosines, each of which meets every state."""
    angles = math.pi / states * (np.arange(states)[:, None] + 0.5) * np.arange(rank)
    return jnp.asarray(np.linalg.qr(np.cos(angles))[0] if rank else np.zeros((states, 0)))


def _refuse(plan: Plan) -> None:
    program = plan.program
    for leaf in (*program.hidden, *program.params):
        if is_complex(leaf.aval):
            raise NotSupportedError(
                f"LowRank keeps real numbers, and `{leaf.name}` is {leaf.aval.dtype}. Use `RTRL` or `D_RTRL`."
            )
    if plan.nonlinear:
        raise NotSupportedError(
            "LowRank pulls cotangents through whole windows, and a backward pass of this step is not linear in its "
            "cotangent (it may clip). Use `RTRL` or `D_RTRL`."
        )
