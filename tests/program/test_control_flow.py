"""Control flow: values and derivatives are those of the original, and every decision is a record."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from foretrace._jax import Primitive, Var, ad, mlir
from foretrace.errors import ControlFlowError
from foretrace.program import ControlFlowPolicy
from program.steps import flat, kinds, loss, make_program, primitives_of, program_loss, simple

W = jnp.array([0.5, -0.7, 0.3])
H = jnp.array([0.2, 0.4, -0.6])
X = jnp.array([1.0, -2.0, 3.0])


def assert_same(step, args, num_params, num_hidden, program):
    """Values, gradients by everything and a forward derivative agree with the original function."""
    original = flat(step, num_params, num_hidden)
    values = jax.jit(lambda *a: jax.tree.leaves(program(*split(program, a))))
    for got, want in zip(values(*args), jax.jit(original)(*args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)
    places = tuple(range(len(args)))
    for got, want in zip(
        jax.jit(jax.grad(program_loss(program), places))(*args),
        jax.jit(jax.grad(lambda *a: loss(original(*a)), places))(*args),
        strict=True,
    ):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-14)
    tangents = [jnp.cos(1.0 + a) for a in args]
    _, got = jax.jit(lambda a, t: jax.jvp(program_loss(program), a, t))(args, tangents)
    _, want = jax.jit(lambda a, t: jax.jvp(lambda *b: loss(original(*b)), a, t))(args, tangents)
    np.testing.assert_allclose(got, want, rtol=1e-12)


def split(program, args):
    first = len(program.params)
    second = first + len(program.hidden)
    return args[:first], args[first:second], [], args[second:]


def check(body, w=W, h=H, x=X, policy=None):
    program = make_program(simple(body), [w], [h], [x], control_flow=policy)
    assert_same(simple(body), [w, h, x], 1, 1, program)
    return program


# cond


def choose(w, h, x):
    return jax.lax.cond(x[0] > 0, lambda: jnp.tanh(w * h), lambda: h * x + w)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_cond_becomes_a_select(sign):
    program = check(choose, x=sign * X)
    assert kinds(program) == ["cond_to_select"]
    assert "cond" not in primitives_of(program)


DEAD_BRANCHES = {
    "sqrt of data": lambda w, h, x: jnp.sqrt(h) * w,
    "log of data": lambda w, h, x: jnp.log(h * 0.0) + w,
    "division by data": lambda w, h, x: w / (h * 0.0),
    "division by a weight": lambda w, h, x: h / (w * 0.0),
    "sqrt of a weight": lambda w, h, x: jnp.sqrt(w) * h,
    "power of a weight": lambda w, h, x: jnp.power(w * 0.0, 0.5) + h,
    "overflow of a weight": lambda w, h, x: jnp.exp(w * 1e4) * w * h,
    "sqrt of a product": lambda w, h, x: jnp.sqrt(w * h),
    "a product with NaN data": lambda w, h, x: jnp.log(h) @ jnp.outer(w, w),
    "a product with an infinite weight": lambda w, h, x: h @ jnp.outer(1 / (w * 0.0), w),
    "log of a product": lambda w, h, x: jnp.log(-jnp.abs(jnp.outer(w, w) @ h)),
    "norm of a zero weight": lambda w, h, x: h * jnp.linalg.norm(w * 0.0),
    "a long scan": lambda w, h, x: jax.lax.scan(lambda c, _: (jnp.sqrt(c * w - 9.0), None), h, None, length=20)[0],
    "a nested cond": lambda w, h, x: jax.lax.cond(h[0] > 9, lambda: jnp.sqrt(w * h), lambda: jnp.log(h * 0.0) * w),
}


@pytest.mark.parametrize("dead", DEAD_BRANCHES.values(), ids=DEAD_BRANCHES.keys())
def test_the_dead_branch_leaves_no_nan(dead):
    def body(w, h, x):
        return jax.lax.cond(x[0] > 0, lambda: w * h + x, lambda: dead(w, h, x))

    program = make_program(simple(body), [W], [H], [X])
    value, pullback = jax.vjp(lambda w, h, x: program([w], [h], [], [x])[0][0], W, H, X)
    alive = lambda w, h, x: w * h + x
    want, reference = jax.vjp(alive, W, H, X)
    np.testing.assert_allclose(value, want, rtol=1e-14)
    for got, expected in zip(pullback(X), reference(X), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-14)
    _, got = jax.jvp(lambda w, h: program([w], [h], [], [X])[0][0], (W, H), (X, X))
    _, expected = jax.jvp(lambda w, h: alive(w, h, X), (W, H), (X, X))
    np.testing.assert_allclose(got, expected, rtol=1e-14)


@pytest.mark.parametrize("live", DEAD_BRANCHES.values(), ids=DEAD_BRANCHES.keys())
def test_the_guard_changes_nothing_where_the_branch_is_live(live):
    def body(w, h, x):
        return jax.lax.cond(x[0] > 0, lambda: w * h + x, lambda: live(w, h, x))

    program = make_program(simple(body), [W], [H], [-X])
    got = jax.jit(jax.jacfwd(lambda w, h: program([w], [h], [], [-X])[0][0], (0, 1)))(W, H)
    want = jax.jit(jax.jacfwd(lambda w, h: body(w, h, -X), (0, 1)))(W, H)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_live_weight_functions_keep_their_derivatives():
    def body(w, h, x):
        return jax.lax.cond(x[0] > 0, lambda: jnp.sqrt(w) * h / w**2, lambda: jnp.exp(w) * w**1.5 @ jnp.outer(h, x))

    for sign in (1.0, -1.0):
        check(body, w=jnp.abs(W), x=sign * X)


def test_guarded_derivatives_can_be_differentiated_again_and_batched():
    def body(w, h, x):
        return jax.lax.cond(x[0] > 0, lambda: jnp.sqrt(w) * h, lambda: w / h)

    program = make_program(simple(body), [jnp.abs(W)], [H], [X])
    hessian = jax.hessian(lambda w: program([w], [H], [], [X])[0][0].sum())
    want = jax.hessian(lambda w: body(w, H, X).sum())
    stack = jnp.stack([jnp.abs(W), jnp.abs(W) + 1])
    np.testing.assert_allclose(jax.jit(jax.vmap(hessian))(stack), jax.jit(jax.vmap(want))(stack), rtol=1e-12)


def test_a_weight_stays_alone_until_it_meets_data():
    def body(w, h, x):
        return jax.lax.cond(x[0] > 0, lambda: h @ jnp.outer(jnp.abs(w), w), lambda: h)

    program = make_program(simple(body), [W], [H], [X])
    alone = set(program.param_invars)
    products = []
    for eqn in program.jaxpr.eqns:
        operands = [v for v in eqn.invars if isinstance(v, Var)]
        if operands and alone.issuperset(operands):
            alone.update(eqn.outvars)
        elif eqn.primitive.name == "dot_general":
            products.append([v in alone for v in eqn.invars])
    assert products == [[False, True]]


@pytest.mark.parametrize("index", [-1, 0, 1, 2, 7])
def test_switch_of_three(index):
    def step(params, hidden, other, inputs):
        (w,), (h,), (x,) = params, hidden, inputs
        branches = [lambda: jnp.sin(w * h), lambda: h / w, lambda: w - h * h]
        return [jax.lax.switch(x.astype(int), branches)], [], []

    program = make_program(step, [W], [H], [jnp.asarray(float(index))])
    assert_same(step, [W, H, jnp.asarray(float(index))], 1, 1, program)
    assert kinds(program) == ["cond_to_select"]


def test_a_choice_by_parameters_alone():
    check(lambda w, h, x: jax.lax.cond(w[0] > 0, lambda: jnp.sqrt(w + 1) * h, lambda: jnp.log(w) + h))


def test_cond_that_touches_neither_is_kept():
    program = check(lambda w, h, x: w * h + jax.lax.cond(x[0] > 0, jnp.sin, jnp.cos, x))
    assert kinds(program) == ["cond_kept"]
    assert "cond" in primitives_of(program)


def test_cond_is_kept_by_policy_with_a_warning():
    program = check(choose, policy=ControlFlowPolicy(cond="keep"))
    (record,) = program.diagnostics
    assert (record.kind, record.level) == ("cond_kept", "warning")
    assert "cond" in primitives_of(program)


def test_cond_of_random_keys():
    def step(params, hidden, other, inputs):
        (w,), (h,), (key,) = params, hidden, other
        key, noise = jax.lax.cond(
            h[0] > 0, lambda k: (jax.random.split(k)[0], jax.random.normal(k, (3,)) * h), lambda k: (k, h), key
        )
        return [w * h + noise], [key], []

    key = jax.random.key(3)
    program = make_program(step, [W], [H], [X], other=[key])
    (h,), (new_key,), _ = program([W], [H], [key], [X])
    (want_h,), (want_key,), _ = step([W], [H], [key], [X])
    np.testing.assert_allclose(h, want_h, rtol=1e-14)
    assert (jax.random.key_data(new_key) == jax.random.key_data(want_key)).all()


# scan


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [0, 1, 4])
def test_short_scans_are_unrolled(reverse, length):
    def step(params, hidden, other, inputs):
        (w,), (h,), (x,) = params, hidden, inputs
        carry = (h, 0)
        body = lambda c, s: ((jnp.tanh(w * c[0] + s), c[1] + 1), (c[0] * s, c[1] * 1.0))
        (h, count), ys = jax.lax.scan(body, carry, x, reverse=reverse)
        return [h], [], [count * 1.0, *ys]

    x = jnp.arange(length * 3.0).reshape(length, 3)
    program = make_program(step, [W], [H], [x])
    assert_same(step, [W, H, x], 1, 1, program)
    assert kinds(program) == ["scan_unrolled"]
    assert "scan" not in primitives_of(program)


def test_long_scans_are_sub_steps_with_lowered_bodies():
    def body(w, h, x):
        inner = lambda c, _: (jax.lax.cond(c[0] > 0, lambda: 0.9 * c * w, lambda: jax.jit(jnp.sin)(c) + x), None)
        return jax.lax.scan(inner, h, None, length=40)[0]

    program = check(body)
    assert kinds(program) == ["scan_substeps", "cond_to_select"]
    assert program.diagnostics[0].context["length"] == 40
    (scan,) = (eqn for eqn in program.jaxpr.eqns if eqn.primitive.name == "scan")
    assert not {"cond", "jit"} & {eqn.primitive.name for eqn in scan.params["jaxpr"].eqns}


def test_long_scans_are_kept_by_policy_with_a_warning():
    body = lambda w, h, x: jax.lax.fori_loop(0, 40, lambda i, c: 0.9 * c * w + x, h)
    program = check(body, policy=ControlFlowPolicy(scan_descent="never"))
    (record,) = program.diagnostics
    assert (record.kind, record.level) == ("scan_kept", "warning")


def test_the_limit_decides():
    body = lambda w, h, x: jax.lax.fori_loop(0, 4, lambda i, c: c * w + x, h)
    assert kinds(check(body, policy=ControlFlowPolicy(scan_unroll_limit=4))) == ["scan_unrolled"]
    assert kinds(check(body, policy=ControlFlowPolicy(scan_unroll_limit=3))) == ["scan_substeps"]


def test_scan_that_touches_neither_is_kept():
    program = check(lambda w, h, x: w * h + jax.lax.map(jnp.sin, x))
    assert kinds(program) == []
    assert "scan" in primitives_of(program)


def test_scan_in_cond_in_scan():
    def body(w, h, x):
        def outer(c, s):
            inner = lambda: jax.lax.scan(lambda d, e: (d * w + e, d), c, jnp.stack([x, s * c]))[0]
            return jax.lax.cond(s > 1, inner, lambda: c - s), c.sum()

        h, sums = jax.lax.scan(outer, h, jnp.arange(4.0))
        return h + sums.sum()

    program = check(body)
    assert set(kinds(program)) == {"scan_unrolled", "cond_to_select"}
    assert not {"scan", "cond"} & set(primitives_of(program))


# while


def halve(w, h, x):
    return jax.lax.while_loop(lambda c: jnp.abs(c).sum() > 0.1, lambda c: c * 0.5, h) * w


def spread(w, h, x):
    """Halves, and mixes positions."""
    return jax.lax.while_loop(lambda c: jnp.abs(c).sum() > 0.1, lambda c: 0.4 * c + 0.1 * jnp.roll(c, 1), h) * w


def check_forward(body, w=W, h=H, x=X):
    """Values and all derivatives agree with those that forward mode gives of the original."""
    program = make_program(simple(body), [w], [h], [x])
    original = lambda *args: loss([body(*args)])
    np.testing.assert_allclose(program_loss(program)(w, h, x), original(w, h, x), rtol=1e-12)
    places = (0, 1, 2)
    wanted = jax.jacfwd(original, places)(w, h, x)
    for mode in (jax.jacrev, jax.jacfwd):
        for got, want in zip(jax.jit(mode(program_loss(program), places))(w, h, x), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-14)
    return program


def test_while_over_elementwise_code_is_followed():
    program = check_forward(halve)
    (record,) = program.diagnostics
    assert (record.kind, record.level, record.hidden_paths) == ("while_forward_mode", "info", (("h0",),))


def test_while_is_followed_by_a_weight_and_by_data():
    body = lambda w, h, x: h * jax.lax.while_loop(lambda c: c.sum() < 1, lambda c: c + jnp.abs(w), jnp.sin(x))
    assert check_forward(body).diagnostics[0].weight_path == ("w0",)


def test_what_the_rounds_have_in_common_stands_before_the_loop():
    matrix = jnp.arange(9.0).reshape(3, 3) / 9
    body = lambda w, h, x: jax.lax.while_loop(lambda c: c.sum() < 1, lambda c: 0.5 * c + (x @ w) ** 2, h)
    program = check_forward(body, w=matrix)
    assert primitives_of(program)[0] == "dot_general"


def test_values_that_only_the_condition_reads_may_mix():
    def body(w, h, x):
        halved = lambda carry: (carry[0] * w, jnp.max(jnp.abs(carry[0])))
        return jax.lax.while_loop(lambda carry: carry[1] > 0.05, halved, (h, jnp.sum(h**2)))[0]

    program = check_forward(body)
    assert kinds(program) == ["while_forward_mode"]
    closed = jax.make_jaxpr(lambda h: jax.jvp(lambda h: program([W], [h], [], [X])[0], [h], [h]))(H)
    (loop,) = [eqn for eqn in closed.eqns if eqn.primitive.name == "while"]
    assert len(loop.outvars) == 3  # the state, its tangent, and the largest change without one


def test_carries_of_one_loop_that_do_not_meet_stay_apart():
    def step(params, hidden, other, inputs):
        body = lambda carry: (carry[0] * params[0], jnp.sin(carry[1]), carry[2] + 1)
        long, short, _ = jax.lax.while_loop(lambda carry: carry[2] < 3, body, (*hidden, jnp.sum(inputs[0] > 9)))
        return [long, short], [], []

    program = make_program(step, [W], [H, jnp.ones(2)], [X])
    by_h = jax.jacrev(lambda h, s: program([W], [h, s], [], [X])[0], (0, 1))(H, jnp.ones(2))
    np.testing.assert_allclose(by_h[0][0], jnp.diag(W**3), rtol=1e-12)
    assert not np.any(by_h[0][1])
    assert not np.any(by_h[1][0])
    np.testing.assert_allclose(by_h[1][1], jax.jacfwd(lambda s: jnp.sin(jnp.sin(jnp.sin(s))))(jnp.ones(2)), rtol=1e-12)


def test_data_may_be_stretched_in_the_loop():
    """Its derivative is forward mode's alone; those of states and parameters are whole."""

    def body(w, h, x):
        add = lambda carry: (carry[0] * w + carry[1], 0.5 * carry[1])
        return jax.lax.while_loop(lambda carry: carry[1] > 0.1, add, (h, jnp.abs(x[0])))[0]

    program = make_program(simple(body), [W], [H], [X])
    original = lambda *args: loss([body(*args)])
    for got, want in zip(
        jax.grad(program_loss(program), (0, 1))(W, H, X), jax.jacfwd(original, (0, 1))(W, H, X), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-12)
    np.testing.assert_allclose(jax.jacfwd(program_loss(program), 2)(W, H, X), jax.jacfwd(original, 2)(W, H, X))
    with pytest.raises(ValueError, match="Reverse-mode"):
        jax.grad(program_loss(program), 2)(W, H, X)


def test_while_is_followed_inside_other_control_flow():
    body = lambda w, h, x: jax.lax.fori_loop(
        0, 30, lambda i, c: jax.lax.cond(i > 3, lambda: halve(w, c, x) + x, lambda: c * w), h
    )
    assert "while_forward_mode" in kinds(check_forward(body))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_while_in_a_branch_that_is_not_taken_has_no_rounds(sign):
    """Where the branch is not taken, the loop would not end."""

    def body(w, h, x):
        grow = lambda: jax.lax.while_loop(lambda c: c.sum() < 9.0, lambda c: c + w**2 * jnp.abs(h), jnp.sin(h))
        inner = lambda: jax.lax.cond(jnp.sum(w**2) > 0.1, grow, lambda: w)
        return jax.lax.cond(jnp.sum(h) > 0.0, inner, lambda: 0.5 * h)

    h = jnp.array([0.2, 0.4, 0.6]) if sign > 0 else jnp.zeros(3)
    calls = [eqn for eqn in make_program(simple(body), [W], [h], [X]).jaxpr.eqns if "call_jaxpr" in eqn.params]
    loops = [loop for call in calls for loop in call.params["call_jaxpr"].eqns if loop.primitive.name == "while"]
    assert [loop.params["cond_nconsts"] for loop in loops] == [1]  # or what follows would not end
    check_forward(body, h=h)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("slice", lambda c: 0.5 * jnp.roll(c, 1)),
        ("reduce_sum", lambda c: c - 0.1 * jnp.sum(c)),
        ("cumsum", lambda c: 0.1 * jnp.cumsum(c)),
        ("sort", lambda c: 0.5 * jnp.sort(c)),
        ("scan", lambda c: jax.lax.scan(lambda s, v: (0.1 * v, s), 0.0, c)[1]),
    ],
)
def test_while_that_mixes_positions_is_refused_by_name(name, change):
    body = lambda w, h, x: jax.lax.while_loop(lambda c: jnp.abs(c).sum() > 0.1, change, h) * w
    with pytest.raises(ControlFlowError, match=r"`h0`.*mixes positions") as caught:
        make_program(simple(body), [W], [H], [X])
    assert "`w0`" not in str(caught.value)
    assert "test_control_flow.py" in str(caught.value)
    assert f"`{name}`" in str(caught.value)


def test_while_without_forward_mode_is_refused_by_name():
    own = jax.custom_vjp(lambda v: 0.5 * v)
    own.defvjp(lambda v: (0.5 * v, None), lambda _, cotangent: (cotangent,))
    body = lambda w, h, x: jax.lax.while_loop(lambda c: jnp.abs(c).sum() > 0.1, own, h) * w
    with pytest.raises(ControlFlowError, match="`custom_vjp_call`"):
        make_program(simple(body), [W], [H], [X])


def test_while_with_effects_is_refused_by_name():
    def shown(c):
        jax.debug.callback(lambda _: None, c)
        return 0.5 * c

    body = lambda w, h, x: jax.lax.while_loop(lambda c: jnp.abs(c).sum() > 0.1, shown, h) * w
    with pytest.raises(ControlFlowError, match=r"`h0`.*has effects"):
        make_program(simple(body), [W], [H], [X])
    program = make_program(simple(body), [W], [H], [X], control_flow=ControlFlowPolicy(while_hidden="hold"))
    np.testing.assert_array_equal(jax.grad(lambda h: program([W], [h], [], [X])[0][0].sum())(H), jnp.zeros(3))


def test_while_is_refused_inside_other_control_flow():
    body = lambda w, h, x: jax.lax.fori_loop(
        0, 30, lambda i, c: jax.lax.cond(i > 3, lambda: spread(w, c, x), lambda: c), h
    )
    with pytest.raises(ControlFlowError, match="`h0`"):
        make_program(simple(body), [W], [H], [X])


def test_while_can_be_held_constant():
    program = make_program(simple(halve), [W], [H], [X], control_flow=ControlFlowPolicy(while_hidden="hold"))
    (record,) = program.diagnostics
    assert (record.kind, record.level) == ("while_held_constant", "warning")
    assert record.hidden_paths == (("h0",),)
    by_w, by_h = jax.grad(lambda w, h: program([w], [h], [], [X])[0][0].sum(), (0, 1))(W, H)
    np.testing.assert_allclose(by_w, halve(jnp.ones(3), H, X), rtol=1e-14)
    np.testing.assert_array_equal(by_h, jnp.zeros(3))


def test_a_held_loop_has_no_derivative_by_a_weight_that_only_it_reads():
    body = lambda w, h, x: jax.lax.while_loop(lambda c: jnp.abs(c).sum() > 0.1, lambda c: c * jnp.sin(w), h) + w
    program = make_program(simple(body), [W], [H], [X], control_flow=ControlFlowPolicy(while_hidden="hold"))
    by_w, by_x = jax.grad(lambda w, x: program([w], [H], [], [x])[0][0].sum(), (0, 1))(W, X)
    np.testing.assert_array_equal(by_w, jnp.ones(3))
    np.testing.assert_array_equal(by_x, jnp.zeros(3))


def test_while_without_derivatives_is_kept():
    def body(w, h, x):
        rounds = jax.lax.while_loop(lambda i: i < (h > 0).sum(), lambda i: i + 1, 0)
        return w * h + rounds

    assert kinds(check(body)) == ["while_kept"]


def test_while_of_which_only_whole_numbers_are_used_is_kept():
    def body(w, h, x):
        halved = lambda carry: (carry[0] * 0.5, carry[1] + 1)
        _, rounds = jax.lax.while_loop(lambda carry: carry[0].sum() > 0.1, halved, (jnp.abs(h), 0))
        return w * h + rounds

    program = check(body)
    assert kinds(program) == ["while_kept"]
    assert program.diagnostics[0].hidden_paths == (("h0",),)


def test_poisson_spikes_of_a_state_are_kept():
    body = lambda w, h, x: w * h + 0.1 * jax.random.poisson(jax.random.key(0), jnp.exp(h))
    assert set(kinds(check(body))) == {"while_kept"}


# policy and records


def test_aliases_of_the_policy():
    policy = ControlFlowPolicy(cond="convert", while_hidden="opaque-fwd", scan_descent="off")
    assert policy == ControlFlowPolicy(cond="select", while_hidden="hold", scan_descent="never")


@pytest.mark.parametrize(
    "wrong",
    [
        {"cond": "maybe"},
        {"while_hidden": None},
        {"etp_in_control_flow": 1},
        {"scan_descent": "deep"},
        {"scan_unroll_limit": -1},
        {"scan_unroll_limit": 2.5},
    ],
    ids=str,
)
def test_wrong_policies_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ControlFlowPolicy(**wrong)


def test_records_name_parameters_and_states():
    program = make_program(simple(choose), [W], [H], [X])
    (record,) = program.diagnostics
    assert record.weight_path == ("w0",)
    assert record.hidden_paths == (("h0",),)
    assert record.primitive == "cond"


@pytest.fixture
def marked_sine():
    primitive = Primitive("marked_sine")
    primitive.etp = True
    primitive.def_impl(jnp.sin)
    primitive.def_abstract_eval(lambda x: x)
    ad.defjvp(primitive, lambda t, x: t * jnp.cos(x))
    mlir.register_lowering(primitive, mlir.lower_fun(jnp.sin, multiple_results=False))
    return primitive.bind


def test_marked_operators_in_control_flow(marked_sine):
    body = lambda w, h, x: jax.lax.cond(x[0] > 0, lambda: marked_sine(w) * h, lambda: h)
    assert "primitive_inside_control_flow" in kinds(check(body))
    with pytest.raises(ControlFlowError, match="marked_sine"):
        check(body, policy=ControlFlowPolicy(etp_in_control_flow="error"))
