"""Normal form: what the compiler may rely on when it reads a step.

`normalise` takes a step without nested calls and returns the same function in which

- every operand of an elementwise equation has the shape of its output, scalar literals aside (JAX stretches scalars and
  axes of size one without saying so; here a `broadcast_in_dim` says it), also inside bodies of control flow;
- a value of parameters alone, or of none, is computed once, however often the step asks for it: the one is a single
  occurrence, and weights that multiply the other can tell that they do;
- no equation is computed in vain; all inputs and effects stay;
- every hidden output is a variable of its own that an equation defines.
"""

from collections.abc import Hashable

from foretrace._jax import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, close_jaxpr, live_jaxpr, new_jaxpr
from foretrace.program.elementwise import NARY
from foretrace.program.emit import Emitter
from foretrace.program.walks import needed_eqns, variables


def normalise(closed_jaxpr: ClosedJaxpr, num_hidden: int, num_params: int = 0) -> ClosedJaxpr:
    """Brings a step into normal form.

    Args:
        closed_jaxpr: A step without nested calls, whose first outputs are the hidden states.
        num_hidden: How many they are.
        num_params: How many of the first inputs are parameters.

    Returns:
        The same function in normal form.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> closed = jax.make_jaxpr(lambda h, s: h * s)(jnp.ones(3), jnp.ones(1))
        >>> [eqn.primitive.name for eqn in normalise(closed, 1).eqns]
        ['broadcast_in_dim', 'mul']
    """
    jaxpr = merge_equal(explicit_broadcasts(closed_jaxpr.jaxpr), num_params)
    jaxpr = own_outvars(jaxpr, num_hidden)
    return remove_dead_code(close_jaxpr(jaxpr, closed_jaxpr.consts))


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
    return new_jaxpr(jaxpr.constvars, jaxpr.invars, jaxpr.outvars, eqns)


def merge_equal(jaxpr: Jaxpr, num_params: int) -> Jaxpr:
    """The jaxpr with equal values computed once that are made of the first `num_params` inputs alone, or of the others.

    A neuron that reads its learned threshold in three places would otherwise have three traces for it, and four gates
    that put input and output side by side four traces of that.
    """
    fixed = {*jaxpr.constvars, *jaxpr.invars[:num_params]}
    given = {*jaxpr.constvars, *jaxpr.invars[num_params:]}
    first: dict[Hashable, list[Var]] = {}
    merged: dict[Atom, Atom] = {}
    eqns: list[JaxprEqn] = []
    for eqn in jaxpr.eqns:
        if merged:
            eqn = eqn.replace(invars=[v if isinstance(v, Literal) else merged.get(v, v) for v in eqn.invars])
        operands = variables(eqn.invars)
        sources = [source for source in (fixed, given) if operands <= source]
        key = _identity(eqn) if sources else None
        if key is not None and key in first:
            merged.update(zip(eqn.outvars, first[key], strict=True))
            continue
        if key is not None:
            first[key] = eqn.outvars
            for source in sources:
                source.update(eqn.outvars)
        eqns.append(eqn)
    outvars = [v if isinstance(v, Literal) else merged.get(v, v) for v in jaxpr.outvars]
    return new_jaxpr(jaxpr.constvars, jaxpr.invars, outvars, eqns)


def _identity(eqn: JaxprEqn) -> Hashable | None:
    """Equal for two equations that compute the same; None where that cannot be told."""
    operands = tuple((repr(v.val), v.aval) if isinstance(v, Literal) else v for v in eqn.invars)  # 0.0 == -0.0
    key = (eqn.primitive, operands, tuple(sorted(eqn.params.items())))
    try:
        hash(key)
    except TypeError:
        return None
    return None if eqn.effects else key


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
    return new_jaxpr(jaxpr.constvars, jaxpr.invars, outvars, [*jaxpr.eqns, *emitter.eqns])


def remove_dead_code(closed_jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The function without equations and constants that nothing needs; all inputs and effects stay."""
    jaxpr = closed_jaxpr.jaxpr
    if any(eqn.primitive.name in ("scan", "cond", "while") for eqn in jaxpr.eqns):
        jaxpr = live_jaxpr(jaxpr)  # also inside their bodies
    else:
        needed = needed_eqns(jaxpr.eqns, jaxpr.outvars, effects=True)
        jaxpr = new_jaxpr(jaxpr.constvars, jaxpr.invars, jaxpr.outvars, needed)
    used = variables([*jaxpr.outvars, *(v for eqn in jaxpr.eqns for v in eqn.invars)])
    constants = zip(closed_jaxpr.jaxpr.constvars, closed_jaxpr.consts, strict=True)
    kept = [(var, value) for var, value in constants if var in used]
    pruned = new_jaxpr([var for var, _ in kept], jaxpr.invars, jaxpr.outvars, jaxpr.eqns)
    return close_jaxpr(pruned, [value for _, value in kept])


def _is_scalar_literal(atom: Atom) -> bool:
    return isinstance(atom, Literal) and atom.aval.ndim == 0


def _in_bodies(value: object) -> object:
    if isinstance(value, ClosedJaxpr):
        return close_jaxpr(explicit_broadcasts(value.jaxpr), value.consts)
    return tuple(map(_in_bodies, value)) if isinstance(value, tuple) else value
