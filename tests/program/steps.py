"""Step programs made of plain functions, for the tests of this folder."""

import jax
import jax.numpy as jnp

from foretrace._jax import eval_jaxpr
from foretrace.program import Leaf, StepProgram, build_program


def leaves(prefix, variables):
    return [Leaf((f"{prefix}{i}",), v.aval) for i, v in enumerate(variables)]


def make_program(step, params, hidden, inputs=(), other=(), control_flow=None) -> StepProgram:
    """The program of `step(params, hidden, other, inputs) -> (hidden, other, outputs)` on lists of arrays."""
    closed = jax.make_jaxpr(flat(step, len(params), len(hidden), len(other)))(*params, *hidden, *other, *inputs)
    groups, start = [], 0
    for prefix, group in (("w", params), ("h", hidden), ("k", other), ("x", inputs)):
        groups.append(leaves(prefix, closed.jaxpr.invars[start : start + len(group)]))
        start += len(group)
    return build_program(
        closed,
        params=groups[0],
        hidden=groups[1],
        other=groups[2],
        inputs=groups[3],
        outputs=leaves("out", closed.jaxpr.outvars[len(hidden) + len(other) :]),
        control_flow=control_flow,
    )


def flat(step, num_params, num_hidden, num_other=0):
    """The step on a flat list of arrays."""

    def run(*args):
        first, second = num_params + num_hidden, num_params + num_hidden + num_other
        new = step(args[:num_params], args[num_params:first], args[first:second], args[second:])
        return [leaf for group in new for leaf in group]

    return run


def simple(body):
    """A step of one parameter, one state and one input from `body(w, h, x) -> h`."""
    return lambda params, hidden, other, inputs: ([body(*params, *hidden, *inputs)], [], [])


def loss(outs):
    """A scalar in which every output counts with a weight of its own."""
    return sum(jnp.sum(jnp.cos(jnp.arange(o.size).reshape(o.shape)) * o) for o in outs)


def program_loss(program):
    return lambda *args: loss(eval_jaxpr(program.jaxpr, program.consts, *args))


def kinds(program):
    return [record.kind.value for record in program.diagnostics]


def primitives_of(program):
    return [eqn.primitive.name for eqn in program.jaxpr.eqns]
