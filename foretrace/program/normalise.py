"""Normal form: what the compiler may rely on when it reads a step.

`normalise` takes a step without nested calls and returns the same function in which

- every operand of an elementwise equation has the shape of its output, scalar literals aside (JAX stretches scalars and
  axes of size one without saying so; here a `broadcast_in_dim` says it), also inside bodies of control flow;
- no equation is computed in vain; all inputs and effects stay;
- every hidden output is a variable of its own that an equation defines.
"""

from collections.abc import Sequence

from foretrace._jax import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, dce_jaxpr, new_jaxpr
from foretrace.program.elementwise import NARY
from foretrace.program.emit import Emitter


def normalise(closed_jaxpr: ClosedJaxpr, num_hidden: int) -> ClosedJaxpr:
    """Brings a step into normal form.

    Args:
        closed_jaxpr: A step without nested calls, whose first outputs are the hidden states.
        num_hidden: How many they are.

    Returns:
        The same function in normal form.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> closed = jax.make_jaxpr(lambda h, s: h * s)(jnp.ones(3), jnp.ones(1))
        >>> [eqn.primitive.name for eqn in normalise(closed, 1).eqns]
        ['broadcast_in_dim', 'mul']
    """
    jaxpr = own_outvars(explicit_broadcasts(closed_jaxpr.jaxpr), num_hidden)
    return remove_dead_code(ClosedJaxpr(jaxpr, closed_jaxpr.consts))


def explicit_broadcasts(jaxpr: Jaxpr) -> Jaxpr:
    """The jaxpr with every implicit stretch of an elementwise operand written out."""
    eqns: list[JaxprEqn] = []
    for eqn in jaxpr.eqns:
        emitter = Emitter(eqn)
        if eqn.primitive.name in NARY:
            shape = eqn.outvars[0].aval.shape
            stretched = [v if _is_scalar_literal(v) else emitter.broadcast(v, shape) for v in eqn.invars]
            eqn = eqn.replace(invars=stretched) if emitter.eqns else eqn
        elif eqn.primitive.name in ("scan", "cond", "while"):
            eqn = eqn.replace(params={key: _in_bodies(value) for key, value in eqn.params.items()})
        eqns.extend((*emitter.eqns, eqn))
    return new_jaxpr(jaxpr.constvars, jaxpr.invars, jaxpr.outvars, eqns, like=jaxpr)


def own_outvars(jaxpr: Jaxpr, count: int) -> Jaxpr:
    """The jaxpr with its first `count` outputs distinct variables, each defined by an equation.

    An output among the rest may still be the same variable as one of the first: a readout of the new state reads that
    state, and not a copy.
    """
    free = {v for eqn in jaxpr.eqns for v in eqn.outvars}
    emitter = Emitter()
    outvars: list[Atom] = []
    for position, atom in enumerate(jaxpr.outvars):
        if position < count and (isinstance(atom, Literal) or atom not in free):
            atom = emitter.copy(atom)
        elif position < count:
            free.remove(atom)
        outvars.append(atom)
    return new_jaxpr(jaxpr.constvars, jaxpr.invars, outvars, [*jaxpr.eqns, *emitter.eqns], like=jaxpr)


def remove_dead_code(closed_jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The function without equations and constants that nothing needs; all inputs and effects stay."""
    jaxpr = closed_jaxpr.jaxpr
    if any(eqn.primitive.name in ("scan", "cond", "while") for eqn in jaxpr.eqns):
        jaxpr, _ = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)  # also inside their bodies
    else:
        jaxpr = new_jaxpr(jaxpr.constvars, jaxpr.invars, jaxpr.outvars, _needed_eqns(jaxpr), like=jaxpr)
    used = _used_vars(jaxpr.eqns, jaxpr.outvars)
    constants = zip(closed_jaxpr.jaxpr.constvars, closed_jaxpr.consts, strict=True)
    kept = [(var, value) for var, value in constants if var in used]
    pruned = new_jaxpr([var for var, _ in kept], jaxpr.invars, jaxpr.outvars, jaxpr.eqns, like=jaxpr)
    return ClosedJaxpr(pruned, [value for _, value in kept])


def _needed_eqns(jaxpr: Jaxpr) -> list[JaxprEqn]:
    needed = {v for v in jaxpr.outvars if isinstance(v, Var)}
    kept = []
    for eqn in reversed(jaxpr.eqns):
        if eqn.effects or not needed.isdisjoint(eqn.outvars):
            kept.append(eqn)
            needed.update(v for v in eqn.invars if isinstance(v, Var))
    return kept[::-1]


def _used_vars(eqns: Sequence[JaxprEqn], outvars: Sequence[Atom]) -> set[Var]:
    atoms = [*outvars, *(v for eqn in eqns for v in eqn.invars)]
    return {v for v in atoms if not isinstance(v, Literal)}


def _is_scalar_literal(atom: Atom) -> bool:
    return isinstance(atom, Literal) and atom.aval.ndim == 0


def _in_bodies(value: object) -> object:
    if isinstance(value, ClosedJaxpr):
        return ClosedJaxpr(explicit_broadcasts(value.jaxpr), value.consts)
    return tuple(map(_in_bodies, value)) if isinstance(value, tuple) else value
