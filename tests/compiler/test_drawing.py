"""The picture: files that are written, names in them, boxes that do not overlap, arrows that mean something."""

import builtins
import itertools
import xml.etree.ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from foretrace.compiler.reporting.drawing import draw_graph, text_width
from foretrace.compiler.reporting.layout import make_picture
from foretrace.entry import compile_etrace_graph

BATCH, INPUT, UNITS = 2, 3, 5


def drawn(*shape):
    return jnp.asarray(np.random.default_rng(len(shape)).normal(size=shape))


def leaky_graph():
    def step(params, state, x):
        v = 0.9 * state["v"] + x @ params["w"]
        return {"v": v}, v @ params["w_out"]

    params = {"w": drawn(INPUT, UNITS), "w_out": drawn(UNITS, 2)}
    return compile_etrace_graph(step, drawn(BATCH, INPUT), params=params, state={"v": drawn(BATCH, UNITS)})


def lstm_stack_graph(layers):
    """LSTMs with separate gates: twelve parameters and one group of two states in each layer."""

    def step(params, state, x):
        new = []
        for layer, old in zip(params["layers"], state, strict=True):
            i, f, g, o = (x @ layer[f"w_{k}"] + old["h"] @ layer[f"u_{k}"] + layer[f"b_{k}"] for k in "ifgo")
            c = jax.nn.sigmoid(f) * old["c"] + jax.nn.sigmoid(i) * jnp.tanh(g)
            new.append({"c": c, "h": jax.nn.sigmoid(o) * jnp.tanh(c)})
            x = new[-1]["h"]
        return new, x @ params["w_out"]

    gates = {f"w_{k}": drawn(UNITS, UNITS) for k in "ifgo"} | {f"u_{k}": drawn(UNITS, UNITS) for k in "ifgo"}
    gates |= {f"b_{k}": drawn(UNITS) for k in "ifgo"}
    params = {"layers": [gates] * layers, "w_out": drawn(UNITS, 2)}
    state = [{"c": drawn(BATCH, UNITS), "h": drawn(BATCH, UNITS)}] * layers
    return compile_etrace_graph(step, drawn(BATCH, UNITS), params=params, state=state)


def gru_graph():
    """A reset gate in front of a product: it reaches the state through mixing alone."""

    def step(params, state, x):
        r = jax.nn.sigmoid(x @ params["w_r"])
        h = 0.5 * state + jnp.tanh((r * state) @ params["u"] + x @ params["w"])
        return h, h

    params = {"w_r": drawn(INPUT, UNITS), "w": drawn(INPUT, UNITS), "u": drawn(UNITS, UNITS)}
    return compile_etrace_graph(step, drawn(BATCH, INPUT), params=params, state=drawn(BATCH, UNITS))


def populations_graph():
    """Three populations of different sizes, each connected to each."""
    sizes = {"e": 6, "i": 3, "s": 2}

    def step(params, state, x):
        drive = {to: sum(jnp.tanh(state[of]) @ params[f"{of}_{to}"] for of in sizes) for to in sizes}
        return {name: 0.9 * state[name] + drive[name] for name in sizes}, state["e"] * x

    params = {f"{of}_{to}": drawn(sizes[of], sizes[to]) for of in sizes for to in sizes}
    state = {name: drawn(BATCH, size) for name, size in sizes.items()}
    return compile_etrace_graph(step, drawn(), params=params, state=state)


@pytest.fixture(scope="module")
def leaky():
    return leaky_graph()


def texts(path):
    """All text of an SVG file; parsing it fails where it is not well formed."""
    root = xml.etree.ElementTree.parse(path).getroot()
    assert root.tag.endswith("svg")
    return [element.text or "" for element in root.iter() if element.tag.endswith("text")]


@pytest.mark.parametrize("build", [leaky_graph, gru_graph, lambda: lstm_stack_graph(2), populations_graph])
def test_svg_contains_every_name(build, tmp_path):
    graph = build()
    graph.show_graph(tmp_path / "graph.svg")
    found = texts(tmp_path / "graph.svg")
    assert {leaf.name for leaf in (*graph.program.params, *graph.program.hidden)} <= set(found)


@pytest.mark.parametrize(("ending", "start"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_format_follows_the_ending(leaky, tmp_path, ending, start):
    path = tmp_path / f"graph.{ending}"
    draw_graph(leaky, str(path))
    assert path.read_bytes().startswith(start)


def test_same_graph_gives_the_same_file(leaky, tmp_path):
    for name in ("a.svg", "b.svg"):
        draw_graph(leaky, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_unknown_ending_is_refused(leaky, tmp_path):
    with pytest.raises(ValueError, match=r"graph\.docx"):
        draw_graph(leaky, tmp_path / "graph.docx")
    assert not list(tmp_path.iterdir())


def test_missing_matplotlib_says_what_to_install(leaky, monkeypatch):
    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ImportError, match=r"foretrace\[viz\]"):
        draw_graph(leaky)


def test_figure_grows_with_the_number_of_parameters():
    heights = [draw_graph(graph).get_size_inches()[1] for graph in (leaky_graph(), lstm_stack_graph(1))]
    assert heights[1] > 2 * heights[0]


@pytest.mark.parametrize("build", [leaky_graph, gru_graph, lambda: lstm_stack_graph(3), populations_graph])
def test_boxes_hold_their_text_and_do_not_overlap(build):
    picture = make_picture(build(), text_width)
    boxes = [*picture.parameters.values(), *(operator.box for operator in picture.operators), *picture.groups]
    boxes += [] if picture.output is None else [picture.output]
    for box in boxes:
        assert all(text_width(line, box.size_of(k)) < box.width for k, line in enumerate(box.lines))
        assert box.left > 0
        assert box.right < picture.width
        assert box.middle - box.height / 2 > 0
        assert box.middle + box.height / 2 < picture.height
    for first, second in itertools.combinations(boxes, 2):
        beside = first.right <= second.left or second.right <= first.left
        apart = abs(first.middle - second.middle) >= (first.height + second.height) / 2
        assert beside or apart


def test_arrows_end_at_places_of_their_own():
    picture = make_picture(populations_graph(), text_width)
    ends = [place for arrow in picture.arrows if arrow.bulge for place in (arrow.start, arrow.end)]
    assert len(set(ends)) == len(ends)
    assert sum(not arrow.label for arrow in picture.arrows if arrow.bulge) == 6


def test_path_through_mixing_alone_is_dashed():
    picture = make_picture(gru_graph(), text_width)
    by_text = {operator.text: operator for operator in picture.operators}
    assert (by_text["input @ w_r"].direct, by_text["input @ w_r"].mixed) == ([], [0])
    assert (by_text["input @ w"].direct, by_text["input @ w"].mixed) == ([0], [])
    height = by_text["input @ w_r"].box.middle
    (arrow,) = [a for a in picture.arrows if a.head and a.start[1] == height]
    assert not arrow.direct


def test_group_has_a_loop_for_each_way_to_its_future():
    def loops(graph):
        return [arrow.label for arrow in make_picture(graph, text_width).arrows if arrow.label]

    assert loops(leaky_graph()) == ["direct"]
    assert loops(gru_graph()) == ["direct", "mixing"]


def test_paths_that_others_imply_are_left_out():
    picture = make_picture(lstm_stack_graph(3), text_width)
    assert all(len(operator.direct) + len(operator.mixed) <= 1 for operator in picture.operators)
    assert sum(bool(arrow.bulge) and not arrow.label for arrow in picture.arrows) == 2


def test_readout_leads_to_the_output_box(leaky):
    picture = make_picture(leaky, text_width)
    assert picture.output is not None
    assert sum(arrow.end[0] == picture.output.left and arrow.head for arrow in picture.arrows) == 2
    assert make_picture(gru_graph(), text_width).output is None


def test_parameters_without_data_are_drawn(tmp_path):
    def step(params, state, x):
        v = 0.9 * state + x
        return v, v

    graph = compile_etrace_graph(step, drawn(UNITS), params={"idle": drawn(3)}, state=drawn(UNITS))
    graph.show_graph(tmp_path / "graph.svg")
    assert "idle" in texts(tmp_path / "graph.svg")


def test_signs_of_mathematics_are_plain_text(tmp_path):
    def step(params, state, x):
        v = 0.9 * state + params["$a_1$ & <b>"] * x
        return v, v

    graph = compile_etrace_graph(step, drawn(UNITS), params={"$a_1$ & <b>": drawn(UNITS)}, state=drawn(UNITS))
    graph.show_graph(tmp_path / "graph.svg")
    assert "$a_1$ & <b>" in texts(tmp_path / "graph.svg")
