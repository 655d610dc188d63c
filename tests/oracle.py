"""The dense oracle: the gradient of the design's section 2 with full Jacobians, plain and slow.

It evaluates a step program equation by equation, with its own list of what mixes, and takes from a compiled graph
only the groups and the `y` of every relation. The transition `D`, the input derivative `F`, `dy/dw` and the partial
derivative `l` are whole matrices over flattened states. `l = lam - K^T lam`: from the ordinary cotangent of each new
state is taken what runs along direct paths through other new states of its group; what runs there through mixing stays.

The gradients are gathered at the values of parameters that meet data, and taken from there to the parameters once at
each step: a user's own backward pass on that way need not be linear, and then it matters what is added up before.

A loss may also read the past beside the new state: an output made of the previous state, or of the parts that a packed
state is put together of. That partial derivative by the previous states, the new ones held fixed, is `b`, and its
product with the trace belongs to the gradient too; without it D-RTRL would not equal BPTT for such models.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from foretrace._jax import Jaxpr, JaxprEqn, Literal, Var, bind_eqn, eval_jaxpr
from foretrace.compiler.graph import ETraceGraph
from foretrace.compiler.positions import TransitionKind
from foretrace.compiler.structure import Known
from foretrace.ops import is_etp_primitive
from foretrace.program.records import StepProgram

REDUCTIONS = {"reduce_sum", "reduce_max", "reduce_min", "reduce_prod"}
CUMULATIVE = {"cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"}
ALWAYS_MIXING = {"conv_general_dilated", "sort", "while", "fft", "cholesky", "triangular_solve", "lu", "top_k"}
ALWAYS_MIXING |= {"bcoo_dot_general"}  # a product of JAX's sparse matrices
ALWAYS_MIXING |= {"custom_linear_solve"}  # `jnp.linalg.solve`: every element of the result depends on all of both


def counted(jaxpr: Jaxpr, atom: Any) -> bool:
    """Whether a value comes from whole numbers alone."""
    if np.issubdtype(atom.aval.dtype, np.inexact):
        return False
    made = next((eqn for eqn in jaxpr.eqns if not isinstance(atom, Literal) and atom in eqn.outvars), None)
    return made is None or all(counted(jaxpr, operand) for operand in made.invars)


def points(eqn: JaxprEqn, jaxpr: Jaxpr, constant: Callable[[Any], bool]) -> bool:
    """Whether whole numbers choose one of at most 64 places for what an equation reads or writes."""
    name, operand = eqn.primitive.name, eqn.invars[0].aval.shape
    if name in ("dynamic_slice", "dynamic_update_slice"):
        start = 1 if name == "dynamic_slice" else 2
        window = eqn.outvars[0].aval.shape if start == 1 else eqn.invars[1].aval.shape
        indices = eqn.invars[start:]
        open_axes = [axis for axis, atom in enumerate(indices) if not constant(atom)]
    else:
        indices, numbers = eqn.invars[1:2], eqn.params["dimension_numbers"]
        open_axes = numbers.start_index_map if name == "gather" else numbers.scatter_dims_to_operand_dims
        window = eqn.params["slice_sizes"] if name == "gather" else [1] * len(operand)
    choices = np.prod([operand[axis] - window[axis] + 1 for axis in open_axes])
    return all(counted(jaxpr, atom) for atom in indices) and choices <= 64


def mixes(eqn: JaxprEqn, constant: Callable[[Any], bool], jaxpr: Jaxpr) -> bool:
    """The design's list of mixing equations, in its own words."""
    name = eqn.primitive.name
    if is_etp_primitive(eqn.primitive):
        return eqn.primitive.mixing
    if name == "dot_general":
        return bool(eqn.params["dimension_numbers"][0][0])
    if name in REDUCTIONS:
        return any(eqn.invars[0].aval.shape[axis] > 1 for axis in eqn.params["axes"])
    if name in CUMULATIVE:
        return eqn.invars[0].aval.shape[eqn.params["axis"]] > 1
    if name in ("gather", "dynamic_slice"):
        return not all(constant(atom) for atom in eqn.invars[1:]) and not points(eqn, jaxpr, constant)
    if name == "scan":
        body = eqn.params["jaxpr"].jaxpr
        return any(mixes(inner, lambda _: False, body) for inner in body.eqns)
    return name in ALWAYS_MIXING or name.startswith("reduce_window")


def mixed_updates(eqn: JaxprEqn, known: Known) -> int | None:
    """The operand whose elements an equation puts at positions given by data, or adds up at shared ones: a scatter's
    updates. None where there is no such operand."""
    if eqn.primitive.name == "dynamic_update_slice":
        constant = lambda atom: known.value(atom) is not None
        return None if all(map(constant, eqn.invars[2:])) or points(eqn, known.jaxpr, constant) else 1
    if not eqn.primitive.name.startswith("scatter"):
        return None
    indices = known.value(eqn.invars[1])
    if indices is None:
        batch = eqn.params["dimension_numbers"].scatter_indices_batching_dims
        rows = [size for axis, size in enumerate(eqn.invars[1].aval.shape[:-1]) if axis not in batch]
        alone = eqn.primitive.name == "scatter" or np.prod(rows) == 1
        return None if alone and points(eqn, known.jaxpr, lambda _: False) else 2
    if eqn.primitive.name == "scatter":
        return None
    with jax.ensure_compile_time_eval():
        ones, zeros = np.ones(eqn.invars[2].aval.shape), np.zeros(eqn.invars[0].aval.shape)
        options = {name: eqn.params[name] for name in ("dimension_numbers", "mode")}
        count = np.asarray(jax.lax.scatter_add(zeros, indices, ones, **options))
    return 2 if np.max(count, initial=0) > 1 else None


@functools.lru_cache(maxsize=64)
def held_operands(eqn: JaxprEqn) -> tuple[int, ...]:
    """The operands of a call through whose own backward pass no direct path runs: the cotangents of some are not linear
    in those of the outputs, and of others several elements act on one element of an output.

    Told by trying: small and large cotangents, and sums of them; and one element of an output after another.
    """
    if eqn.primitive.name != "custom_vjp_call":
        return ()
    rng = np.random.default_rng(0)

    def draw(aval: Any) -> Any:
        floating = np.issubdtype(aval.dtype, np.inexact)
        return jnp.asarray(rng.normal(size=aval.shape), aval.dtype) if floating else jnp.ones(aval.shape, aval.dtype)

    held: set[int] = set()
    with jax.ensure_compile_time_eval():
        active = [i for i, atom in enumerate(eqn.invars) if np.issubdtype(atom.aval.dtype, np.inexact)]
        values = [draw(atom.aval) for atom in eqn.invars]

        def call(*chosen: Any) -> Any:
            filled = dict(zip(active, chosen, strict=True))
            return bind_eqn(eqn, *(filled.get(i, value) for i, value in enumerate(values)))

        _, pull_back = jax.vjp(call, *(values[i] for i in active))
        one, two = ([draw(out.aval) for out in eqn.outvars] for _ in range(2))
        alone = pull_back(one), pull_back(two)
        for scale in (1e-4, 1.0, 1e4):
            both = pull_back([scale * (a - 2.0 * b) for a, b in zip(one, two, strict=True)])
            for i, found, a, b in zip(active, both, *alone, strict=True):
                if not np.allclose(found / scale, a - 2.0 * b, rtol=1e-5, atol=1e-9):
                    held.add(i)
        for out in eqn.outvars:
            units = jnp.eye(out.aval.size, dtype=out.aval.dtype).reshape(-1, *out.aval.shape)
            others = [jnp.zeros_like(draw(other.aval)) for other in eqn.outvars]
            for unit in units:
                found = pull_back(
                    [unit if other is out else zero for other, zero in zip(eqn.outvars, others, strict=True)]
                )
                held.update(i for i, by in zip(active, found, strict=True) if np.count_nonzero(by) > 1)
    return tuple(sorted(held))


def run(
    program: StepProgram,
    flat: Sequence[Any],
    *,
    cut: bool = False,
    added: dict[Var, Any] | None = None,
    fixed: dict[Var, Any] | None = None,
    wanted: Sequence[Var] = (),
) -> tuple[list[Any], list[Any]]:
    """Evaluates a step.

    Args:
        program: The step.
        flat: Its inputs.
        cut: Hold the outputs of mixing equations constant.
        added: Perturbations of variables, seen where they meet data.
        fixed: Values that replace what the step computes.
        wanted: Variables whose values are returned too.

    Returns:
        The outputs and the wanted values.
    """
    added, fixed, jaxpr = added or {}, fixed or {}, program.jaxpr
    env: dict[Var, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*program.consts, *flat], strict=True))
    made = _made(program)
    known = Known(program.jaxpr, program.consts)

    def read(atom: Any, data: bool) -> Any:
        if isinstance(atom, Literal):
            return atom.val
        param_value = made[atom] == "params"
        return env[atom] + added[atom] if param_value and data and atom in added else env[atom]

    for eqn in jaxpr.eqns:
        data = "data" in [made[var] for var in eqn.outvars]
        operands = [read(atom, data) for atom in eqn.invars]

        def constant(atom: Any) -> bool:
            return isinstance(atom, Literal) or made[atom] == "constants"

        if cut and data and (placed := mixed_updates(eqn, known)) is not None:
            operands[placed] = jax.lax.stop_gradient(operands[placed])
        for place in held_operands(eqn) if cut and data else ():
            operands[place] = jax.lax.stop_gradient(operands[place])
        outs = bind_eqn(eqn, *operands)
        stop = cut and data and mixes(eqn, constant, jaxpr)
        for var, value in zip(eqn.outvars, outs, strict=True):
            value = jax.lax.stop_gradient(value) if stop else value
            value = value + added[var] if var in added and made[var] == "data" else value
            env[var] = fixed.get(var, value)
    return [read(v, True) for v in jaxpr.outvars], [env[v] for v in wanted]


def _made(program: StepProgram) -> dict[Var, str]:
    made: dict[Var, str] = dict.fromkeys(program.jaxpr.constvars, "constants")
    made |= dict.fromkeys(program.jaxpr.invars, "data") | dict.fromkeys(program.param_invars, "params")
    for eqn in program.jaxpr.eqns:
        kinds = {made[a] for a in eqn.invars if not isinstance(a, Literal)}
        kind = "data" if "data" in kinds else "params" if "params" in kinds else "constants"
        made.update(dict.fromkeys(eqn.outvars, "data" if set(eqn.outvars) & set(program.hidden_outvars) else kind))
    return made


def _meeting(program: StepProgram) -> list[Var]:
    """Values of parameters alone that have a derivative and meet data, or are returned."""
    made = _made(program)
    used = [atom for eqn in program.jaxpr.eqns if "data" in [made[v] for v in eqn.outvars] for atom in eqn.invars]
    variables = [atom for atom in [*used, *program.jaxpr.outvars] if not isinstance(atom, Literal)]
    return [v for v in dict.fromkeys(variables) if made[v] == "params" and np.issubdtype(v.aval.dtype, np.inexact)]


def _made_values(program: StepProgram, params: Sequence[Any], wanted: Sequence[Var]) -> list[Any]:
    """The values of variables that are made of parameters alone."""
    made = _made(program)
    env: dict[Var, Any] = dict(zip(program.jaxpr.constvars, program.consts, strict=True))
    env.update(zip(program.param_invars, params, strict=True))
    for eqn in (eqn for eqn in program.jaxpr.eqns if eqn.outvars and made[eqn.outvars[0]] != "data"):
        operands = [atom.val if isinstance(atom, Literal) else env[atom] for atom in eqn.invars]
        env.update(zip(eqn.outvars, bind_eqn(eqn, *operands), strict=True))
    return [env[var] for var in wanted]


@dataclass(frozen=True)
class Oracle:
    """D-RTRL for one compiled graph and a loss on the step's outputs."""

    graph: ETraceGraph
    loss: Callable[[list[Any]], Any]
    jit: Callable[..., Any] = jax.jit

    def gradient(self, params: Any, hidden: Any, other: Any, inputs: Sequence[Any]) -> list[np.ndarray]:
        """The gradient of the summed losses over a sequence, one array for each parameter."""
        return self.gradients(params, hidden, other, inputs)[-1]

    def gradients(self, params: Any, hidden: Any, other: Any, inputs: Sequence[Any]) -> list[list[np.ndarray]]:
        """The gradients of the losses summed so far, after each step of a sequence."""
        return [total for total, _ in self.steps(params, hidden, other, inputs)]

    def steps(
        self, params: Any, hidden: Any, other: Any, inputs: Sequence[Any]
    ) -> Iterator[tuple[list[np.ndarray], list[Any]]]:
        """The gradients of the losses summed so far, and the flat states, after each step of a sequence."""
        program, relations = self.graph.program, self.graph.hidden_param_op_relations
        quantities = self.jit(self._quantities)
        meeting, pull_back = _meeting(program), self._pull_back(params)
        total = [np.zeros(p.shape) for p in params]
        size = sum(leaf.aval.size for leaf in program.hidden)
        traces = [[np.zeros((size, w.var.aval.size)) for w in r.occurrence.weights] for r in relations]
        for x in inputs:
            hidden, other, found = quantities(params, hidden, other, x)
            found = jax.tree.map(_in_numpy, found)
            asked = dict(zip(meeting, found["in_step"], strict=True))
            for k, relation in enumerate(relations):
                for n, weight in enumerate(relation.occurrence.weights):
                    carried = found["D"] @ traces[k][n]
                    signal = found["l"] @ carried + found["b"] @ traces[k][n]
                    asked[weight.var] = asked[weight.var] + signal.reshape(weight.var.aval.shape)
                    traces[k][n] = carried + found["F"][k] @ found["dydw"][k][n]
            total = [a + b for a, b in zip(total, pull_back(list(asked.values())), strict=True)]
            yield total, [*hidden, *other]

    def _pull_back(self, params: Any) -> Callable[[list[Any]], list[np.ndarray]]:
        """From gradients by the values that meet data to those by the parameters that they are made of."""
        program, meeting = self.graph.program, _meeting(self.graph.program)
        if all(var in program.param_invars for var in meeting):
            asked = {var: n for n, var in enumerate(meeting)}
            zeros = [np.zeros(p.shape) for p in params]
            own = list(zip(program.param_invars, zeros, strict=True))
            return lambda given: [given[asked[var]] if var in asked else zero for var, zero in own]
        values, pullback = jax.vjp(lambda p: _made_values(program, p, meeting), list(params))
        compiled = self.jit(lambda given: pullback([g.astype(v.dtype) for g, v in zip(given, values, strict=True)])[0])
        return lambda given: [_in_numpy(g) for g in compiled(given)]

    def _quantities(self, params: Any, hidden: Any, other: Any, x: Any) -> tuple[Any, Any, dict[str, Any]]:
        program, graph = self.graph.program, self.graph
        n_hidden, n_other = len(program.hidden), len(program.other)

        def states(hidden: Any, added: dict[Var, Any] | None = None) -> jax.Array:
            outs, _ = run(program, [*params, *hidden, *other, *x], cut=True, added=added)
            return _flat(outs[:n_hidden])

        def loss(params: Any, fixed: Any = None, old: Any = hidden, added: Any = None) -> Any:
            outs, _ = run(program, [*params, *old, *other, *x], fixed=fixed, added=added)
            return self.loss(outs[n_hidden + n_other :])

        flat = [*params, *hidden, *other, *x]
        outs, _ = run(program, flat)
        new = dict(zip(program.hidden_outvars, outs[:n_hidden], strict=True))
        zeros = [jnp.zeros_like(value) for value in new.values()]
        found = jax.grad(lambda added: loss(params, added=dict(zip(new, added, strict=True))))(zeros)
        whole = dict(zip(new, found, strict=True))
        signals = dict(whole)
        bypass = dict.fromkeys(program.hidden_invars)
        for group in graph.hidden_groups:
            own = group.hidden_outvars
            for target in own if len(own) > 1 else ():
                through = self._through(target, {v: new[v] for v in own if v is not target}, flat, whole[target])
                signals |= {v: signals[v] - part for v, part in through.items()}
            fixed = {v: jax.lax.stop_gradient(new[v]) for v in own}
            past = jax.grad(lambda old, fixed=fixed: loss(params, fixed, old))(list(hidden))
            both = zip(program.hidden_invars, past, strict=True)
            bypass |= {v: signal for v, signal in both if v in group.hidden_invars}
        jacobians = [
            jax.jacrev(lambda p, y=r.y_var: states(hidden, {y: p}))(_zeros(r.y_var))
            for r in graph.hidden_param_op_relations
        ]
        matrices = {
            "in_step": self._in_step(loss, params),
            "D": _matrix(jax.jacrev(states)(list(hidden))) * transition_mask(graph),
            "F": [
                j.reshape(j.shape[0], -1) * group_rows(graph, r.hidden_groups)[:, None]
                for r, j in zip(graph.hidden_param_op_relations, jacobians, strict=True)
            ],
            "dydw": [self._operator(r, flat) for r in graph.hidden_param_op_relations],
            "l": _flat([signals[v] for v in program.hidden_outvars]),
            "b": _flat([bypass[v] for v in program.hidden_invars]),
        }
        return outs[:n_hidden], outs[n_hidden : n_hidden + n_other], matrices

    def _in_step(self, loss: Callable[..., Any], params: Any) -> list[Any]:
        """The loss by every value of parameters alone, where it meets data."""
        meeting = _meeting(self.graph.program)
        zeros = [_zeros(var) for var in meeting]
        return jax.grad(lambda added: loss(params, added=dict(zip(meeting, added, strict=True))))(zeros)

    def _through(self, target: Var, others: dict[Var, Any], flat: Sequence[Any], asked: Any) -> dict[Var, Any]:
        """What is asked of a new state, as it reaches the others of its group by direct paths within the step, each of
        them a variable of its own: a row of `K^T lam`."""
        place = self.graph.program.hidden_outvars.index(target)

        def computed(*given: Any) -> Any:
            fixed = dict(zip(others, given, strict=True))
            return run(self.graph.program, flat, cut=True, fixed=fixed)[0][place]

        value, pull_back = jax.vjp(computed, *others.values())
        return dict(zip(others, pull_back(asked.astype(value.dtype)), strict=True))

    def _operator(self, relation: Any, flat: Sequence[Any]) -> list[Any]:
        occurrence = relation.occurrence
        if relation.occurrence.kind == "elementwise":
            return [jnp.eye(occurrence.y_var.aval.size)]
        eqn, place = occurrence.eqn, occurrence.eqn.outvars.index(occurrence.y_var)
        wanted = [a for a in eqn.invars if not isinstance(a, Literal)]
        values = dict(zip(wanted, run(self.graph.program, flat, wanted=wanted)[1], strict=True))
        operands = [a.val if isinstance(a, Literal) else values[a] for a in eqn.invars]

        def y(value: Any, index: int) -> Any:
            return bind_eqn(eqn, *(value if i == index else o for i, o in enumerate(operands)))[place].reshape(-1)

        return [
            jax.jacrev(y)(operands[w.index], w.index).reshape(occurrence.y_var.aval.size, -1)
            for w in occurrence.weights
        ]


def transition_mask(graph: ETraceGraph) -> np.ndarray:
    """One where a derivative of a next by a previous state is kept: inside a group, and for a group whose elements
    reach several positions, at the same position."""
    leaves = graph.program.hidden
    group_of = {path: group for group in graph.hidden_groups for path in group.hidden_paths}
    owner = np.concatenate([np.full(leaf.aval.size, group_of[leaf.path].index) for leaf in leaves])
    place = np.concatenate([_positions(leaf, group_of[leaf.path]) for leaf in leaves])
    collapsed = np.array([g.positions.kind is TransitionKind.COLLAPSED for g in graph.hidden_groups])[owner]
    kept = (owner[:, None] == owner[None, :]) & (~collapsed[:, None] | (place[:, None] == place[None, :]))
    return kept.astype(float)


def group_rows(graph: ETraceGraph, groups: Sequence[Any]) -> np.ndarray:
    """One for the elements of states in these groups."""
    paths = {path for group in groups for path in group.hidden_paths}
    return np.concatenate([np.full(leaf.aval.size, float(leaf.path in paths)) for leaf in graph.program.hidden])


def _positions(leaf: Any, group: Any) -> np.ndarray:
    count = int(np.prod(group.varshape, dtype=int))
    return np.arange(leaf.aval.size) // (leaf.aval.size // count)


def _in_numpy(value: jax.Array) -> np.ndarray:
    """In double precision, where numpy multiplies: nothing is compiled for one product."""
    return np.asarray(value, np.complex128 if jnp.iscomplexobj(value) else np.float64)


def _zeros(var: Var) -> jax.Array:
    return jnp.zeros(var.aval.shape, var.aval.dtype)


def _flat(values: Sequence[Any]) -> jax.Array:
    return jnp.concatenate([jnp.ravel(v) for v in values])


def _matrix(blocks: Sequence[Any]) -> jax.Array:
    return jnp.concatenate([b.reshape(b.shape[0], -1) for b in blocks], axis=1)


def bptt(graph: ETraceGraph, loss: Callable, params: Any, hidden: Any, other: Any, inputs: Sequence[Any]) -> list[Any]:
    """The whole gradient, backward through time over hidden states; other states carry none."""
    program = graph.program
    n_hidden, n_other = len(program.hidden), len(program.other)

    @jax.jit
    def gradient(params: Any) -> Any:
        def total(params: Any) -> Any:
            def step(carry: Any, x: Any) -> Any:
                flat = eval_jaxpr(program.jaxpr, program.consts, *params, *carry[0], *carry[1], *x)
                rest = [jax.lax.stop_gradient(o) for o in flat[n_hidden : n_hidden + n_other]]
                return (flat[:n_hidden], rest), loss(flat[n_hidden + n_other :])

            stacked = [jnp.stack(values) for values in zip(*inputs, strict=True)]
            return jnp.sum(jax.lax.scan(step, (list(hidden), list(other)), stacked)[1])

        return jax.grad(total)(list(params))

    return gradient(params)
