"""The benchmark of the five forms: the same gradient in each, and a page with a line for each."""

import frontends
from frontends import Size


def test_all_forms_have_the_same_gradient_and_a_line() -> None:
    size = Size(units=4, batch=2, inputs=3, steps=5)
    seconds, apart = frontends.measure(size, repeats=1)
    assert apart < 1e-10
    lines = frontends.page(seconds, apart, size, 1).splitlines()
    forms = ("function", "Flax NNX", "Flax linen", "Equinox", "brainstate")
    assert [line.split(" |")[0] for line in lines if line.startswith("| ")][2:] == [f"| {form}" for form in forms]
