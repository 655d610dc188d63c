"""What objects say of themselves: one short line each, whatever they hold."""

import dataclasses
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import brainstate
import jax
import jax.numpy as jnp
import pytest

import foretrace as ft
from foretrace._repr import LONGEST, one_line
from foretrace.tasks import Adding
from foretrace.train import Result, network
from foretrace.train.best import Best
from foretrace.train.iteration import TrainState

SHAPES = {"a": (4,), "w": (3, 4), "readout": (4, 2)}
PARAMS = {name: jnp.ones(shape, jnp.float32) for name, shape in SHAPES.items()}


def step(params: Any, h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    h = jnp.tanh(x @ params["w"] + params["a"] * h)
    return h, h @ params["readout"]


@pytest.fixture(scope="module")
def learner() -> ft.Learner:
    return ft.compile(step, "D_RTRL", jnp.ones((5, 3), "float32"), params=PARAMS, state=jnp.zeros((5, 4), "float32"))


def result() -> Result:
    metrics = [{"iteration": k + 1, "loss": 1 / (k + 1), "accuracy": 0.5, "seconds": 0.1} for k in range(300)]
    state = TrainState(PARAMS, None, jax.random.key(0), 300, None, None, None)
    return Result(PARAMS, metrics, state, "goal", None, Best(9, metrics[8], PARAMS), "adding D_RTRL")


def records(owner: Any, depth: int = 5) -> Iterator[Any]:
    """The records of the package that a record holds, itself first."""
    if dataclasses.is_dataclass(owner) and type(owner).__module__.startswith("foretrace") and depth:
        yield owner
        for field in dataclasses.fields(owner):
            value = getattr(owner, field.name, None)
            inner = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else [value]
            for part in inner:
                yield from records(part, depth - 1)


def test_a_learner_and_what_it_is_made_of(learner: ft.Learner) -> None:
    graph = learner.graph
    assert repr(learner) == "Learner(D_RTRL, 3 parameters, 1 state in 1 group)"
    assert repr(graph) == "ETraceGraph(3 parameters, 1 state in 1 group, 2 relations)"
    assert repr(graph.hidden_groups) == "(HiddenGroup(0: state, (5, 4), 1 value each),)"
    assert repr(graph.hidden_param_op_relations[0]) == "HiddenParamOpRelation(w -> state by dot_general)"
    assert repr(learner.model) == "TracedModel(step, 3 parameters, 1 state)"
    assert repr(learner.plan) == "Plan(3 parameters, 1 state in 1 group, 2 traces)"
    assert repr(learner.plan.links[0]) == "Link(0: w -> state)"
    assert repr(graph.program).startswith("StepProgram(3 parameters, 1 state, 1 input, 1 output, ")


def test_every_record_is_short(learner: ft.Learner) -> None:
    inner = [*records(learner), *learner.report, *learner.report.parameters]
    found = [record for record in inner if type(record).__name__ not in ("TreeSpec", "PathForm")]
    assert len({type(record) for record in found}) > 15
    assert {type(r).__name__: repr(r) for r in found if len(repr(r)) > 200 or "\n" in repr(r)} == {}


def test_a_carry_is_a_pytree_and_says_its_size(learner: ft.Learner) -> None:
    carry = learner.init()
    assert repr(carry) == "Carry(state: 1 array, 80 B; trace: 2 arrays, 320 B)"
    assert len(jax.tree.leaves(carry)) == 3
    assert repr(jax.eval_shape(learner.init)) == repr(carry)


def test_traced_values_are_described_too(learner: ft.Learner) -> None:
    said = []
    jax.eval_shape(lambda carry: said.append(repr(carry)), learner.init())
    assert said == [repr(learner.init())]


def test_what_is_half_made_is_described_too() -> None:
    assert repr(object.__new__(ft.Learner)) == "Learner(...)"
    assert repr(object.__new__(Result)).startswith("Result(")


def test_a_line_has_an_end() -> None:
    class Long:
        @one_line
        def __repr__(self) -> Iterator[str]:
            yield "word\n" * 100

    assert len(repr(Long())) == LONGEST + len("Long()")
    assert "\n" not in repr(Long())


def test_a_comparison() -> None:
    row = ft.ComparedGradient("overall", 0.778, 0.9, 1.0, 1.1)
    assert repr(ft.GradientComparison("D_RTRL", (row,), row)) == (
        "GradientComparison(D_RTRL against BPTT, cosine 0.78, 1 parameter)"
    )


def test_what_training_leaves() -> None:
    assert repr(result()) == "Result(adding D_RTRL, 300 iterations, loss 0.003333, accuracy 0.5, stopped: goal)"
    assert repr(result().best) == "Best(iteration 9, loss 0.1111, accuracy 0.5, parameters: 3 arrays, 96 B)"
    assert repr(result().state) == "TrainState(parameters: 3 arrays, 96 B; optimizer: nothing)"


def test_networks_and_trials() -> None:
    assert repr(network("RNN", 2, 1, 4)).startswith("Network(RNN, 2 inputs, 4 hidden, 1 outputs, parameters: ")
    trial = Adding(n_steps=5).sample(jax.random.key(0), 2)
    assert repr(trial) == "Trial(inputs (5, 2, 2), targets (5, 2, 1), mask (5, 2))"


class Checked(HTMLParser):
    """Reads HTML, and notes what is open and what a page could fetch or run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        assert not {"src", "href"} & {name for name, _ in attrs}
        if tag != "br":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked(text: str) -> set[str]:
    """The elements of a whole and harmless piece of HTML."""
    found = Checked(text)
    assert found.open == []
    assert "script" not in found.tags
    assert "url(" not in text
    return found.tags


def test_a_learner_shows_its_parameters(learner: ft.Learner) -> None:
    for shown in (learner, learner.graph, learner.report, learner.graph.explain(level=3)):
        text = shown._repr_html_()
        assert '<div class="why">reaches no state</div>' in text
        assert {"div", "style", "table"} <= checked(text)
        assert all(word in text for word in ("readout", "(3, 4)", "input @ w", "no history needed"))
    assert "Learner(D_RTRL, 3 parameters, 1 state in 1 group)" in learner._repr_html_()
    assert "table" not in checked(learner.graph.explain(level=0)._repr_html_())


def test_a_comparison_shows_its_cosines() -> None:
    row = ft.ComparedGradient("<w>", 0.778, 0.9, 1.0, 1.1, ft.HistoryKind.DIRECT)
    text = ft.GradientComparison("D_RTRL", (row,), row)._repr_html_()
    assert "table" in checked(text)
    assert all(word in text for word in ("0.7780", "&lt;w&gt;", "direct paths"))


def test_a_result_shows_metrics_and_a_curve() -> None:
    text = result()._repr_html_()
    assert {"table", "svg", "polyline"} <= checked(text)
    assert "accuracy" in text
    assert "svg" not in checked(dataclasses.replace(result(), metrics=[])._repr_html_())


class Leaky(brainstate.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = brainstate.ParamState(jnp.ones((3, 4)))
        self.h = brainstate.HiddenState(jnp.zeros(4))

    def update(self, x: jax.Array) -> jax.Array:
        self.h.value = 0.5 * self.h.value + x @ self.w.value
        return self.h.value


def test_the_learner_of_a_module() -> None:
    learner = ft.compile(Leaky(), "D_RTRL", jnp.ones(3))
    assert repr(learner) == f"{type(learner).__name__}(D_RTRL of Leaky, 1 parameter, 1 state in 1 group)"
    assert repr(type(learner)(Leaky())).endswith("(D_RTRL of Leaky, not compiled)")
    assert "table" in checked(learner._repr_html_())
    assert "not compiled" in type(learner)(Leaky())._repr_html_()
    assert repr(learner.graph.module_info) == "ModuleInfo(Leaky, 1 parameter, 1 state)"
