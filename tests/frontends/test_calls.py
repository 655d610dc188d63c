"""How a module is called is found by evaluating the possible forms; what cannot be told apart is asked for."""

import jax
import jax.numpy as jnp
import pytest

from foretrace.errors import ExampleInputError, StateMismatchError
from foretrace.frontends.calls import STATE_FIRST, STATE_LAST, find_call, parse_call

X, H, LIKE_H = jnp.ones(3), jnp.ones(4), jnp.ones(4)
W = jnp.ones((3, 4))


class Scan:
    def __call__(self, h, x):
        return h + x @ W, x


class Stateful:
    def __call__(self, x, h):
        return x, h + x @ W


class Cell:
    def __call__(self, x, h):
        return h + x @ W


class Several:
    def __call__(self, x, h):
        return x, jnp.sum(h), h + x @ W


class Twice:
    def __call__(self, x, h):
        h = h + x @ W
        return h, h


class Unnamed:
    def __call__(self, a, b):
        return 0.5 * a + b, a * b


class CarryFirst:
    def __call__(self, carry, x):
        return 0.5 * carry + x, carry * x


class StateLast:
    def __call__(self, x, state):
        return x * state, 0.5 * state + x


def form_of(model, x=X, h=H, **options):
    return str(find_call(model, (x,), h, model=model, **options))


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        (Scan, "state, x -> state, out"),
        (Stateful, "x, state -> out, state"),
        (Cell, "x, state -> state"),
        (Several, "x, state -> out, out, state"),
        (Twice, "x, state -> state, out"),
    ],
)
def test_shapes_tell_the_form(kind, form):
    assert form_of(kind()) == form


def test_a_tree_is_matched_by_its_structure():
    def call(carry, x):
        return (carry[0] + x @ W, carry[1]), x

    assert str(find_call(call, (X,), (H, H), model=call)) == "state, x -> state, out"


def test_input_of_the_state_s_shape_is_told_by_name_as_scan_has_it():
    assert form_of(CarryFirst(), LIKE_H) == "state, x -> state, out"


def test_convention_decides_where_names_do_not():
    assert form_of(Unnamed(), LIKE_H, convention=STATE_LAST) == "x, state -> out, state"
    assert form_of(Unnamed(), LIKE_H, convention=STATE_FIRST) == "state, x -> state, out"


def test_names_go_before_the_convention():
    with pytest.raises(StateMismatchError):  # the order is known, which of the two results is the state is not
        form_of(StateLast(), LIKE_H, convention=STATE_FIRST)


def test_what_cannot_be_told_apart_is_asked_for_with_the_forms():
    with pytest.raises(StateMismatchError) as error:
        form_of(Unnamed(), LIKE_H)
    for form in (
        "state, x -> state, out",
        "state, x -> out, state",
        "x, state -> state, out",
        "x, state -> out, state",
    ):
        assert f'call="{form}"' in str(error.value)


def test_given_form_is_taken():
    assert form_of(Unnamed(), LIKE_H, call="x,state->out,state") == "x, state -> out, state"


def test_either_of_two_equal_results_may_be_called_the_state():
    assert form_of(Twice(), call="x, state -> out, state") == "x, state -> out, state"


def test_wrong_form_is_refused_with_what_was_found():
    with pytest.raises(StateMismatchError, match=r"float64\[4\], float64\[3\]"):
        form_of(Scan(), call="state, x -> out, state")
    with pytest.raises(ExampleInputError, match="`x, state` raised TypeError"):
        form_of(Scan(), call="x, state -> state, out")


@pytest.mark.parametrize(
    "text", ["", "x", "x, h -> h", "x -> state", "x, state -> out", "x, x -> out", "state, x -> state, state"]
)
def test_no_form_of_a_call(text):
    with pytest.raises(ValueError, match="x, state -> out, state"):
        parse_call(text)


def test_form_is_a_string():
    with pytest.raises(TypeError):
        parse_call(3)


def test_call_that_fits_in_no_order_says_what_each_raised():
    with pytest.raises(ExampleInputError) as error:
        form_of(Scan(), jnp.ones(7))
    assert "`state, x` raised TypeError" in str(error.value)
    assert "`x, state` raised" in str(error.value)
    assert isinstance(error.value.__cause__, TypeError)


def test_call_without_a_new_state_says_what_was_returned():
    class Stateless:
        def __call__(self, h, x):
            return jnp.sum(h) + x

    with pytest.raises(StateMismatchError, match=r"returned one value \(float64\[3\]\)"):
        form_of(Stateless())


def test_evaluation_is_abstract():
    ran = []

    class Counted(Scan):
        def __call__(self, h, x):
            with pytest.raises(jax.errors.ConcretizationTypeError):
                ran.append(bool(x[0]))
            ran.append("abstract")
            return super().__call__(h, x)

    form_of(Counted())
    assert set(ran) == {"abstract"}
