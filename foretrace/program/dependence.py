"""What a value is made of: parameters, states, data.

A forward pass that gives every variable a `Source`: the parameters and hidden states it can depend on, those among them
that a derivative can come from, and whether anything but parameters and constants enters it. The answer is an upper
bound: equations that are not control flow mix all of their operands.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from foretrace._jax import Atom, Jaxpr, JaxprEqn, Literal, Var, is_float, scan_counts


@dataclass(frozen=True)
class Source:
    """What a value is made of.

    Attributes:
        touches: The parameters and hidden states it can depend on, by their place among a program's inputs.
        flows: Those of them that a derivative can come from.
        data: Something other than parameters and constants enters it.
    """

    touches: frozenset[int] = frozenset()
    flows: frozenset[int] = frozenset()
    data: bool = False

    @property
    def param_only(self) -> bool:
        """Made of parameters (and constants) alone."""
        return bool(self.touches) and not self.data


CONSTANT = Source()
Sources = dict[Var, Source]


def join(sources: Iterable[Source]) -> Source:
    """What a value is made of that is made of all of these."""
    sources = list(sources)
    return Source(
        frozenset().union(*(s.touches for s in sources)),
        frozenset().union(*(s.flows for s in sources)),
        any(s.data for s in sources),
    )


def source_of(sources: Sources, atom: Atom) -> Source:
    """What an atom is made of; literals and unknown constants are made of nothing."""
    return CONSTANT if isinstance(atom, Literal) else sources.get(atom, CONSTANT)


def track(eqns: Iterable[JaxprEqn], sources: Sources) -> None:
    """Adds to `sources` what the outputs of these equations are made of."""
    for eqn in eqns:
        ins = [source_of(sources, v) for v in eqn.invars]
        rule = source_rules.get(eqn.primitive.name, _mixed)
        for var, source in zip(eqn.outvars, rule(eqn, ins), strict=True):
            sources[var] = source if is_float(var.aval) else Source(source.touches, frozenset(), source.data)


def jaxpr_sources(jaxpr: Jaxpr, ins: Sequence[Source]) -> list[Source]:
    """What the outputs of a jaxpr are made of, given what its inputs are made of."""
    sources: Sources = dict(zip(jaxpr.invars, ins, strict=True))
    track(jaxpr.eqns, sources)
    return [source_of(sources, v) for v in jaxpr.outvars]


def scan_body_sources(eqn: JaxprEqn, ins: Sequence[Source]) -> list[Source]:
    """What the inputs of a scan's body are made of over all of its iterations."""
    first, num_carry = scan_counts(eqn.params)
    last = first + num_carry
    current = list(ins)
    while True:
        outs = jaxpr_sources(eqn.params["jaxpr"].jaxpr, current)[: last - first]
        carry = [join(pair) for pair in zip(current[first:last], outs, strict=True)]
        if carry == current[first:last]:
            return current
        current[first:last] = carry


def _mixed(eqn: JaxprEqn, ins: Sequence[Source]) -> list[Source]:
    whole = join(ins)
    flows = join(s for s, v in zip(ins, eqn.invars, strict=True) if is_float(v.aval)).flows
    return [Source(whole.touches, flows, whole.data)] * len(eqn.outvars)


def _stopped(eqn: JaxprEqn, ins: Sequence[Source]) -> list[Source]:
    whole = join(ins)
    return [Source(whole.touches, frozenset(), whole.data)] * len(eqn.outvars)


def _scan(eqn: JaxprEqn, ins: Sequence[Source]) -> list[Source]:
    return jaxpr_sources(eqn.params["jaxpr"].jaxpr, scan_body_sources(eqn, ins))


def _cond(eqn: JaxprEqn, ins: Sequence[Source]) -> list[Source]:
    chooser = Source(ins[0].touches, frozenset(), ins[0].data)
    branches = [jaxpr_sources(branch.jaxpr, ins[1:]) for branch in eqn.params["branches"]]
    return [join((chooser, *outs)) for outs in zip(*branches, strict=True)]


source_rules: dict[str, Callable[[JaxprEqn, Sequence[Source]], list[Source]]] = {
    "stop_gradient": _stopped,
    "scan": _scan,
    "cond": _cond,
}
