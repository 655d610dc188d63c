"""Control flow: from branches and loops to equations that a trace can follow.

`lower_control_flow` takes a step without nested calls and returns the same function in which control flow that a
parameter or a hidden state runs through is lowered, each kind as a `ControlFlowPolicy` says:

- `cond` becomes both branches and a select, guarded so that the branch not taken leaves no NaN in a derivative;
- `scan` is unrolled when short, and kept as sub-steps with a lowered body when long;
- `while` over code that acts position by position is followed by forward mode, and refused by name elsewhere; or it is
  held constant.

Control flow that neither touches is kept. Every decision is a record. Values are unchanged, and so are derivatives,
except through a `while` that is held.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretrace._jax import (
    Atom,
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    ShapedArray,
    Var,
    close_jaxpr,
    is_float,
    new_jaxpr,
    new_var,
    primitives,
    source_line,
)
from foretrace.errors import ControlFlowError
from foretrace.program.dependence import Source, Sources, join, scan_body_sources, source_of, track
from foretrace.program.diagnostics import CompilationRecord, DiagnosticKind, DiagnosticLevel
from foretrace.program.emit import Emitter, literal
from foretrace.program.guard import guard_eqns, guard_value
from foretrace.program.inline import bind_names, rename_eqn, resolve
from foretrace.program.records import Leaf
from foretrace.program.unroll import unroll_scan
from foretrace.program.walks import inner_eqns
from foretrace.program.while_loops import follow_while, hoist_constants, hold_while, run_if

_CHOICES: dict[str, dict[str, str]] = {
    "cond": {"select": "select", "convert": "select", "keep": "keep"},
    "while_hidden": {"error": "error", "hold": "hold", "opaque-fwd": "hold"},
    "etp_in_control_flow": {"trace": "trace", "error": "error"},
    "scan_descent": {"auto": "auto", "never": "never", "off": "never"},
}


@dataclass(frozen=True)
class ControlFlowPolicy:
    """What happens to control flow that a parameter or a hidden state runs through.

    Attributes:
        cond: `'select'` (also `'convert'`) computes both branches and selects; `'keep'` leaves the `cond`.
        scan_unroll_limit: Scans of at most this length are unrolled.
        while_hidden: `'error'` follows a `while` whose body acts position by position, by forward mode, and refuses any
            other by name; `'hold'` (also `'opaque-fwd'`) treats the result of every `while` as a constant.
        etp_in_control_flow: `'trace'` follows marked operators inside control flow; `'error'` refuses them.
        scan_descent: `'auto'` treats long scans as sub-steps; `'never'` (also `'off'`) keeps them as they are.
        fixpoint_iteration_limit: Checked, and not used: no analysis here iterates without an end of its own.

    Examples:
        >>> ControlFlowPolicy(cond='convert').cond
        'select'
    """

    cond: str = "select"
    scan_unroll_limit: int = 16
    while_hidden: str = "error"
    etp_in_control_flow: str = "trace"
    scan_descent: str = "auto"
    fixpoint_iteration_limit: int = 64

    def __post_init__(self) -> None:
        for field, choices in _CHOICES.items():
            value = getattr(self, field)
            if not isinstance(value, str) or value not in choices:
                valid = ", ".join(map(repr, choices))
                raise ValueError(f"ControlFlowPolicy.{field} is {value!r}. Choose one of: {valid}.")
            object.__setattr__(self, field, choices[value])
        for field, least in (("scan_unroll_limit", 0), ("fixpoint_iteration_limit", 1)):
            limit = getattr(self, field)
            if not isinstance(limit, int) or isinstance(limit, bool) or limit < least:
                raise ValueError(f"ControlFlowPolicy.{field} is {limit!r}. Give an integer of at least {least}.")


def lower_control_flow(
    closed_jaxpr: ClosedJaxpr,
    params: Sequence[Leaf],
    hidden: Sequence[Leaf],
    policy: ControlFlowPolicy | None = None,
) -> tuple[ClosedJaxpr, tuple[CompilationRecord, ...]]:
    """Lowers the control flow that parameters and hidden states run through.

    Args:
        closed_jaxpr: A step without nested calls; its first inputs are the parameters, then the hidden states.
        params: The parameters.
        hidden: The hidden states.
        policy: What to do with each kind of control flow.

    Returns:
        The same function with that control flow lowered, and what was decided.

    Raises:
        ControlFlowError: A `while` that is differentiated and mixes positions, or a marked operator where the policy
            forbids it.

    Examples:
        >>> import jax
        >>> step = lambda w, h: jax.lax.cond(h > 0, lambda: w * h, lambda: h)
        >>> closed = jax.make_jaxpr(step)(1.0, 2.0)
        >>> w, h = (Leaf((name,), var.aval) for name, var in zip('wh', closed.jaxpr.invars))
        >>> _, (record,) = lower_control_flow(closed, [w], [h])
        >>> record.kind.value
        'cond_to_select'
    """
    if not isinstance(policy, ControlFlowPolicy | None):
        raise TypeError(
            f"`control_flow` is a `foretrace.ControlFlowPolicy` or None; got {policy!r}. Give its choices by name, "
            "such as `ControlFlowPolicy(while_hidden='hold')`."
        )
    jaxpr = closed_jaxpr.jaxpr
    if not any(eqn.primitive.name in ("cond", "scan", "while") for eqn in jaxpr.eqns):
        return closed_jaxpr, ()
    lowering = _Lowering(policy or ControlFlowPolicy(), (*params, *hidden), len(params))
    for position, var in enumerate(jaxpr.invars):
        traced = frozenset((position,)) if position < len(lowering.leaves) else frozenset()
        flows = traced if is_float(var.aval) else frozenset()
        lowering.sources[var] = Source(traced, flows, data=position >= len(params))
    eqns, outs = lowering.run(jaxpr, jaxpr.constvars, jaxpr.invars)
    lowered = new_jaxpr(jaxpr.constvars, jaxpr.invars, outs, eqns)
    return close_jaxpr(lowered, closed_jaxpr.consts), tuple(lowering.records)


class _Lowering:
    """One run over a step: what variables are made of, and the records so far."""

    def __init__(self, policy: ControlFlowPolicy, leaves: Sequence[Leaf], num_params: int) -> None:
        self.policy = policy
        self.leaves = leaves
        self.num_params = num_params
        self.sources: Sources = {}
        self.records: list[CompilationRecord] = []
        self.wanted: list[int] = []  # outputs of the present equation that a derivative may be asked of
        self.live: Atom | None = None  # whether the branch that the present equation stands in is taken
        self.booleans: dict[Var, Atom] = {}  # integers that were made of a boolean, as `cond` makes its index

    def run(self, jaxpr: Jaxpr, consts: Sequence[Atom], args: Sequence[Atom]) -> tuple[list[JaxprEqn], list[Atom]]:
        """The lowered equations of a jaxpr applied to these atoms, and its outputs."""
        names = bind_names(jaxpr, consts, args)
        differentiated = _differentiated(jaxpr)
        eqns: list[JaxprEqn] = []
        for eqn in jaxpr.eqns:
            originals = eqn.outvars
            self.wanted = [k for k, var in enumerate(originals) if var in differentiated]
            renamed = rename_eqn(eqn, names)
            new_eqns, outs = lowering_rules.get(eqn.primitive.name, _keep)(self, renamed)
            track(new_eqns, self.sources)
            eqns.extend(new_eqns)
            names.update(zip(originals, outs, strict=True))
        return eqns, [resolve(names, v) for v in jaxpr.outvars]

    def body(self, closed: ClosedJaxpr, ins: Sequence[Source]) -> ClosedJaxpr:
        """A body that stays one, lowered inside."""
        invars = [new_var(v.aval) for v in closed.jaxpr.invars]
        self.sources.update(zip(invars, ins, strict=True))
        live, self.live = self.live, None  # a variable of the outside, which a body does not see
        eqns, outs = self.run(closed.jaxpr, [], invars)
        self.live = live
        return close_jaxpr(new_jaxpr([], invars, outs, eqns))

    def made_of(self, atoms: Sequence[Atom]) -> list[Source]:
        return [source_of(self.sources, atom) for atom in atoms]

    def names(self, positions: frozenset[int]) -> str:
        """The parameters and states at these positions, as people write them."""
        kinds = ("parameter", "state")
        return ", ".join(f"{kinds[p >= self.num_params]} `{self.leaves[p].name}`" for p in sorted(positions))

    def record(
        self,
        kind: DiagnosticKind,
        eqn: JaxprEqn,
        message: str,
        level: DiagnosticLevel = DiagnosticLevel.INFO,
        positions: frozenset[int] = frozenset(),
        **context: Any,
    ) -> None:
        """Notes a decision, once for equations that stem from the same line."""
        line = source_line(eqn)
        params = [self.leaves[p].path for p in sorted(positions) if p < self.num_params]
        states = tuple(self.leaves[p].path for p in sorted(positions) if p >= self.num_params)
        note = CompilationRecord(
            kind=kind,
            level=level,
            message=f"The `{eqn.primitive.name}` at {line} {message}",
            primitive=eqn.primitive.name,
            weight_path=params[0] if len(params) == 1 else None,
            hidden_paths=states,
            context={"source": line, **({"weight_paths": tuple(params)} if params else {}), **context},
        )
        if note not in self.records:
            self.records.append(note)

    def check_marked(self, eqn: JaxprEqn) -> None:
        """Notes, or refuses, marked operators inside a `cond` or `scan`."""
        for name in dict.fromkeys(inner.primitive.name for inner in inner_eqns(eqn) if is_marked(inner)):
            if self.policy.etp_in_control_flow == "error":
                raise ControlFlowError(
                    f"The marked operator `{name}` stands inside the `{eqn.primitive.name}` at {source_line(eqn)}, "
                    "which the control-flow policy forbids. Move it out, or use etp_in_control_flow='trace'."
                )
            message = f"holds the marked operator `{name}`, which is followed inside it."
            self.record(DiagnosticKind.PRIMITIVE_INSIDE_CONTROL_FLOW, eqn, message, operator=name)


def _differentiated(jaxpr: Jaxpr) -> set[Var]:
    """The variables that floating values lead from to an output: what a derivative of the outputs can ask for."""
    found = {v for v in jaxpr.outvars if isinstance(v, Var) and is_float(v.aval)}
    for eqn in reversed(jaxpr.eqns):
        if not found.isdisjoint(eqn.outvars):
            found |= {v for v in eqn.invars if isinstance(v, Var) and is_float(v.aval)}
    return found


def is_marked(eqn: JaxprEqn) -> bool:
    """Whether the equation is a marked operator: its primitive has a true attribute `etp`."""
    return bool(getattr(eqn.primitive, "etp", False))


Lowered = tuple[list[JaxprEqn], list[Atom]]


def _keep(lowering: _Lowering, eqn: JaxprEqn) -> Lowered:
    return [eqn], list(eqn.outvars)


def _lower_convert(lowering: _Lowering, eqn: JaxprEqn) -> Lowered:
    if eqn.invars[0].aval.dtype == np.bool_:
        lowering.booleans[eqn.outvars[0]] = eqn.invars[0]
    return [eqn], list(eqn.outvars)


def _lower_cond(lowering: _Lowering, eqn: JaxprEqn) -> Lowered:
    touches = join(lowering.made_of(eqn.invars)).touches
    if not touches:
        lowering.record(DiagnosticKind.COND_KEPT, eqn, "is kept: no parameter or state runs through it.")
        return [eqn], list(eqn.outvars)
    lowering.check_marked(eqn)
    if lowering.policy.cond == "keep":
        message = f"is kept as the policy says, so no history is followed through it: {lowering.names(touches)}."
        lowering.record(DiagnosticKind.COND_KEPT, eqn, message, DiagnosticLevel.WARNING, touches)
        ins = lowering.made_of(eqn.invars[1:])
        branches = tuple(lowering.body(branch, ins) for branch in eqn.params["branches"])
        return [eqn.replace(params={**eqn.params, "branches": branches})], list(eqn.outvars)
    message = f"became a select of its branches, which are all computed: {lowering.names(touches)}."
    level = DiagnosticLevel.WARNING if eqn.effects else DiagnosticLevel.INFO
    count = len(eqn.params["branches"])
    lowering.record(DiagnosticKind.COND_TO_SELECT, eqn, message, level, touches, branches=count)
    return _select_branches(lowering, eqn)


def _select_branches(lowering: _Lowering, eqn: JaxprEqn) -> Lowered:
    index, *operands = eqn.invars
    head = Emitter(eqn)
    chooser, live = _predicates(lowering, head, index, len(eqn.params["branches"]))
    by_data = source_of(lowering.sources, index).data
    track(head.eqns, lowering.sources)
    eqns, outs, outside = head.eqns, [], lowering.live
    for branch, is_live in zip(eqn.params["branches"], live, strict=True):
        entry = Emitter(eqn)
        args = []
        for operand, source in zip(operands, lowering.made_of(operands), strict=True):
            # A choice that is itself made of parameters alone may guard them at once: they stay parameters alone.
            guarded = source.data or (source.param_only and not by_data)
            args.append(guard_value(entry, is_live, operand) if guarded else operand)
        both = [is_live, outside]
        lowering.live = is_live if outside is None else entry.apply(primitives.and_p, both, is_live.aval)
        track(entry.eqns, lowering.sources)
        inner, results = lowering.run(branch.jaxpr, [], args)
        eqns = [*eqns, *entry.eqns, *(guard_eqns(inner, is_live, lowering.sources) if by_data else inner)]
        outs.append(results)
    lowering.live = outside
    tail = Emitter(eqn)
    for var, cases in zip(eqn.outvars, zip(*outs, strict=True), strict=True):
        tail.apply(primitives.select_n_p, [chooser, *cases], var.aval, out=var)
    return [*eqns, *tail.eqns], list(eqn.outvars)


def _predicates(lowering: _Lowering, emitter: Emitter, index: Atom, count: int) -> tuple[Atom, list[Atom]]:
    """What `select_n` chooses by, and for every branch whether it is live."""
    boolean = ShapedArray((), np.dtype(bool))
    dtype = index.aval.dtype
    if count == 2:
        chooser = index if dtype == np.bool_ else lowering.booleans.get(index) if isinstance(index, Var) else None
        if chooser is None:
            chooser = emitter.apply(primitives.ne_p, [index, literal(0, dtype)], boolean)
        return chooser, [emitter.apply(primitives.not_p, [chooser], boolean), chooser]
    bounds = literal(0, dtype), literal(count - 1, dtype)
    clamped = emitter.apply(primitives.clamp_p, [bounds[0], index, bounds[1]], ShapedArray((), dtype))
    live: list[Atom] = [emitter.apply(primitives.eq_p, [clamped, literal(b, dtype)], boolean) for b in range(count)]
    return clamped, live


def _lower_scan(lowering: _Lowering, eqn: JaxprEqn) -> Lowered:
    ins = lowering.made_of(eqn.invars)
    touches, length = join(ins).touches, eqn.params["length"]
    if not touches:
        return [eqn], list(eqn.outvars)
    lowering.check_marked(eqn)
    names = lowering.names(touches)
    if length <= lowering.policy.scan_unroll_limit:
        message = f"of length {length} was unrolled: {names}."
        lowering.record(DiagnosticKind.SCAN_UNROLLED, eqn, message, positions=touches, length=length)
        return lowering.run(unroll_scan(eqn), [], eqn.invars)
    if lowering.policy.scan_descent == "never":
        message = f"of length {length} is kept as the policy says, so no history is followed inside it: {names}."
        level = DiagnosticLevel.WARNING
        lowering.record(DiagnosticKind.SCAN_KEPT, eqn, message, level, touches, length=length)
        return [eqn], list(eqn.outvars)
    message = f"of length {length} is treated as sub-steps: {names}."
    lowering.record(DiagnosticKind.SCAN_SUBSTEPS, eqn, message, positions=touches, length=length)
    body = lowering.body(eqn.params["jaxpr"], scan_body_sources(eqn, ins))
    return [eqn.replace(params={**eqn.params, "jaxpr": body})], list(eqn.outvars)


def _lower_while(lowering: _Lowering, eqn: JaxprEqn) -> Lowered:
    if lowering.live is not None:
        eqn = run_if(eqn, lowering.live)  # in a branch that is not taken it need not come to an end
    operands = eqn.invars[eqn.params["cond_nconsts"] :]
    differentiated = [v for v in operands if is_float(v.aval) and source_of(lowering.sources, v).flows]
    positions = join(lowering.made_of(differentiated)).flows
    if not positions:
        lowering.record(DiagnosticKind.WHILE_KEPT, eqn, "is kept: no derivative runs through it.")
        return [eqn], list(eqn.outvars)
    names = lowering.names(positions)
    if not lowering.wanted:
        message = f"is kept: only integers or booleans are made of its result, which have no derivative: {names}."
        lowering.record(DiagnosticKind.WHILE_KEPT, eqn, message, positions=positions)
    elif lowering.policy.while_hidden == "error":
        return _follow_while(lowering, eqn, positions)
    else:
        message = f"is held constant, so no derivative passes it: {names}."
        lowering.record(DiagnosticKind.WHILE_HELD_CONSTANT, eqn, message, DiagnosticLevel.WARNING, positions)
    emitter = Emitter(eqn)
    held = {v: emitter.stop_gradient(v) for v in dict.fromkeys(differentiated)}
    invars = [held.get(v, v) if isinstance(v, Var) else v for v in eqn.invars]
    return [*emitter.eqns, hold_while(eqn.replace(invars=invars))], list(eqn.outvars)


def _follow_while(lowering: _Lowering, eqn: JaxprEqn, positions: frozenset[int]) -> Lowered:
    """The loop as a call whose derivative is taken by forward mode, behind what its rounds have in common."""
    wanted, first = lowering.wanted, eqn.params["cond_nconsts"]
    lowering.check_marked(eqn)
    before, loop = hoist_constants(eqn)
    eqns, fixed = lowering.run(before, [], eqn.invars[first : first + eqn.params["body_nconsts"]])
    loop = loop.replace(invars=[*eqn.invars[:first], *fixed, *loop.invars[first + len(fixed) :]])
    sources = lowering.made_of(loop.invars)
    flowing = [i for i, s in enumerate(sources) if i >= first and s.flows and is_float(loop.invars[i].aval)]
    followed = follow_while(loop, flowing, wanted)
    names = lowering.names(positions)
    if isinstance(followed, str):
        raise ControlFlowError(
            f"{names[0].upper()}{names[1:]} runs through the `while` at {source_line(eqn)}, whose body "
            f"{followed}. The number of rounds is not known, so its derivative is followed by forward mode "
            "alone, where each position depends on itself alone. Use lax.scan or a fori_loop with static bounds, put "
            "jax.lax.stop_gradient on what needs no derivative, or use ControlFlowPolicy(while_hidden='hold') to treat "
            "its result as a constant."
        )
    message = f"acts position by position and is followed by forward mode: {names}."
    lowering.record(DiagnosticKind.WHILE_FORWARD_MODE, eqn, message, positions=positions)
    return [*eqns, followed], list(eqn.outvars)


lowering_rules: dict[str, Callable[[_Lowering, JaxprEqn], Lowered]] = {
    "convert_element_type": _lower_convert,
    "cond": _lower_cond,
    "scan": _lower_scan,
    "while": _lower_while,
}
