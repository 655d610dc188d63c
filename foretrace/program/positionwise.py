"""Which inputs a value depends on position by position, by derivative, and which it mixes.

`reach` takes a jaxpr and what its inputs depend on, and returns what its outputs depend on. A value depends on an input
*position by position* where each of its elements has a derivative by the element at the same place of that input alone,
in the order of elements; shapes may differ by axes of size one. Everything else mixes, and the primitive that did it is
named. The answer is an upper bound: what is not known to act by position mixes.

`loop_reach` is the same over any number of rounds of a loop's body.
"""

from collections.abc import Callable, Sequence

from foretrace._jax import Jaxpr, JaxprEqn, Literal, Var, is_complex, is_float, scan_counts, tangent_jaxpr
from foretrace.program.elementwise import WITHOUT_DERIVATIVE, is_elementwise
from foretrace.program.inline import inline_calls

Reach = frozenset[tuple[int, str]]
"""The inputs that a value depends on by derivative, by number, each with the name of the primitive that mixes it, or an
empty one where it reaches the value position by position. An input may be there in several ways."""

NOTHING: Reach = frozenset()


def mixed_by(name: str, reach: Reach) -> Reach:
    """What a value depends on that the primitive of this name mixes of another."""
    return frozenset((number, mixer or name) for number, mixer in reach)


def reach(jaxpr: Jaxpr, ins: Sequence[Reach]) -> list[Reach]:
    """What the outputs of a jaxpr depend on, given what its inputs depend on; its constants depend on nothing.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> jaxpr = jax.make_jaxpr(lambda v: (jnp.tanh(v) * v, jnp.sum(v)))(jnp.ones(3)).jaxpr
        >>> by_place, summed = reach(jaxpr, [frozenset([(0, '')])])
        >>> sorted(by_place), sorted(summed)
        ([(0, '')], [(0, 'reduce_sum')])
    """
    env: dict[Var, Reach] = dict(zip(jaxpr.invars, ins, strict=True))
    for eqn in jaxpr.eqns:
        operands = [NOTHING if isinstance(v, Literal) else env.get(v, NOTHING) for v in eqn.invars]
        if any(operands):
            outs = reach_rules.get(eqn.primitive.name, _by_name)(eqn, operands)
            env.update((v, out) for v, out in zip(eqn.outvars, outs, strict=True) if is_float(v.aval))
    return [NOTHING if isinstance(v, Literal) else env.get(v, NOTHING) for v in jaxpr.outvars]


def loop_reach(body: Jaxpr, ins: Sequence[Reach], num_consts: int, num_carry: int) -> list[Reach]:
    """What the outputs of a loop's body depend on after any number of rounds, none included for the carries.

    Args:
        body: The body; its inputs are constants, carries and slices, its outputs carries and slices.
        ins: What the constants, the initial carries and the slices depend on.
        num_consts: How many constants there are.
        num_carry: How many carries there are.
    """
    current, last = list(ins), num_consts + num_carry
    while True:
        outs = reach(body, current)
        carry = [old | new for old, new in zip(current[num_consts:last], outs[:num_carry], strict=True)]
        if carry == current[num_consts:last]:
            return [*carry, *outs[num_carry:]]
        current[num_consts:last] = carry


def _by_name(eqn: JaxprEqn, ins: Sequence[Reach]) -> list[Reach]:
    """An elementwise equation keeps positions, unless it stretches an operand; any other mixes."""
    name, out = eqn.primitive.name, eqn.outvars[0] if eqn.outvars else None
    if out is None or not is_elementwise(eqn):
        return _mixing(eqn, ins)
    if name in WITHOUT_DERIVATIVE and not (name == "sign" and is_complex(out.aval)):
        return [NOTHING]
    kept = zip(eqn.invars, ins, strict=True)
    return [NOTHING.union(*(r if v.aval.shape == out.aval.shape else mixed_by(name, r) for v, r in kept))]


def _mixing(eqn: JaxprEqn, ins: Sequence[Reach]) -> list[Reach]:
    return [mixed_by(eqn.primitive.name, NOTHING.union(*ins))] * len(eqn.outvars)


def _reshaped(eqn: JaxprEqn, ins: Sequence[Reach]) -> list[Reach]:
    """Axes of size one come and go; the order of the elements stays."""
    ordered = eqn.invars[0].aval.size == eqn.outvars[0].aval.size and eqn.params.get("dimensions") is None
    return [ins[0]] if ordered or eqn.primitive.name == "squeeze" else _mixing(eqn, ins)


def _cond(eqn: JaxprEqn, ins: Sequence[Reach]) -> list[Reach]:
    branches = [reach(branch.jaxpr, ins[1:]) for branch in eqn.params["branches"]]
    return [NOTHING.union(*outs) for outs in zip(*branches, strict=True)]


def _scan(eqn: JaxprEqn, ins: Sequence[Reach]) -> list[Reach]:
    """Carries may keep positions; slices of an operand and stacked outputs do not."""
    num_consts, num_carry = scan_counts(eqn.params)
    last = num_consts + num_carry
    entering = [*ins[:last], *(mixed_by("scan", r) for r in ins[last:])]
    outs = loop_reach(eqn.params["jaxpr"].jaxpr, entering, num_consts, num_carry)
    return [*outs[:num_carry], *(mixed_by("scan", r) for r in outs[num_carry:])]


def _while(eqn: JaxprEqn, ins: Sequence[Reach]) -> list[Reach]:
    """The condition has no derivative."""
    num_consts, body = eqn.params["body_nconsts"], eqn.params["body_jaxpr"].jaxpr
    return loop_reach(body, ins[eqn.params["cond_nconsts"] :], num_consts, len(eqn.outvars))


def _custom_jvp(eqn: JaxprEqn, ins: Sequence[Reach]) -> list[Reach]:
    """What the tangent rule says, from tangents to tangents."""
    closed, active, out_active = tangent_jaxpr(eqn)
    inner = inline_calls(closed).jaxpr
    outs = reach(inner, [*[NOTHING] * len(eqn.invars), *(ins[i] for i in active)])[len(eqn.outvars) :]
    found = dict(zip(out_active, outs, strict=True))
    return [found.get(k, NOTHING) for k in range(len(eqn.outvars))]


reach_rules: dict[str, Callable[[JaxprEqn, Sequence[Reach]], list[Reach]]] = {
    "reshape": _reshaped,
    "squeeze": _reshaped,
    "broadcast_in_dim": _reshaped,
    "cond": _cond,
    "scan": _scan,
    "while": _while,
    "custom_jvp_call": _custom_jvp,
}
