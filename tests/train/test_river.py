"""Networks as models of river: its evaluation, its own checks, and the numbers of a loop written by hand."""

import copy
import itertools
import pickle
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import foretrace as ft
from foretrace import train

pytest.importorskip("river", reason="the extra `river` is not installed")

from river import checks, evaluate, metrics, preprocessing

from foretrace.train.river import NewFeatureWarning, OnlineClassifier, OnlineRegressor

KINDS = (OnlineClassifier, OnlineRegressor)
per_kind = pytest.mark.parametrize("kind", KINDS)


def small(kind, **options):
    return kind("RNN", "D_RTRL", optax.sgd(0.05), n_hidden=3, **options)


def echo(steps):
    """A stream whose class is the sign of the sample before."""
    values = np.random.default_rng(0).standard_normal((steps + 1, 2))
    return [({"b": x[1], "a": x[0]}, bool(old[0] > 0)) for old, x in itertools.pairwise(values)]


def numbers(steps):
    return [(x, float(y) - x["a"]) for x, y in echo(steps)]


def learned(model, stream):
    for x, y in stream:
        model.learn_one(x, y)
    return model


def leaky(n_inputs, n_outputs, batch=()):
    def step(params, h, x):
        h = 0.5 * h + x @ params["w"]
        return h, h @ params["out"]

    # `jnp.full` of a Python number is of weak type, as parameters written by hand often are
    params = {"w": jnp.full((n_inputs, 4), 0.1), "out": jnp.full((4, n_outputs), 0.1)}
    return ft.compile(step, "D_RTRL", jnp.zeros((*batch, n_inputs)), params=params, state=jnp.zeros((*batch, 4)))


def by_hand(stream, n_outputs, loss):
    """The same stream through the learner's own methods, with what it says to each sample before learning it."""
    net = train.network("RNN", 2, n_outputs, 3, key=0)
    learner, optimizer = net.compile("D_RTRL", 1), optax.sgd(0.05)
    params, carry, readouts = net.params, learner.init(), []
    opt_state = optimizer.init(params)
    for t, (x, y) in enumerate(stream):
        xs = jnp.array([[[x["a"], x["b"]]]])
        readouts.append(learner.run(params, carry, xs)[1].out.ravel())
        grads, carry, _ = learner.grad(params, carry, xs, jnp.array([[t, y]]), loss=loss)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
    return readouts, params, carry


def assert_close(found, wanted):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), found, wanted)


def test_regression_is_the_loop_by_hand():
    stream, model, found = numbers(8), small(OnlineRegressor), []
    for x, y in stream:
        found.append(model.predict_one(x))
        model.learn_one(x, y)
    readouts, params, carry = by_hand(stream, 1, lambda out, y: jnp.sum((out.out - y[1]) ** 2))
    assert found[0] == 0.0
    assert_close(found[1:], [readout.item() for readout in readouts[1:]])
    assert_close((model.params, model.carry), (params, carry))


def test_classification_is_the_loop_by_hand():
    stream = [(x, bool(k % 2) if k < 2 else y) for k, (x, y) in enumerate(echo(8))]  # False first, then True
    model, found = small(OnlineClassifier, max_classes=2), []
    for x, y in stream:
        found.append(model.predict_proba_one(x))
        model.learn_one(x, y)

    def loss(out, y):  # while one class is known, it is certain
        cost = optax.softmax_cross_entropy_with_integer_labels(out.out[0], y[1].astype(int))
        return jnp.where(y[0] == 0, 0.0, cost)

    readouts, params, carry = by_hand(stream, 2, loss)
    assert found[:2] == [{}, {False: 1.0}]
    for probabilities, readout in zip(found[2:], readouts[2:], strict=True):
        assert_close([probabilities[False], probabilities[True]], list(jax.nn.softmax(readout)))
    assert_close((model.params, model.carry), (params, carry))


@per_kind
def test_a_prediction_changes_nothing(kind):
    model = learned(small(kind), echo(3) if kind is OnlineClassifier else numbers(3))
    before = pickle.dumps(model.__getstate__() | {"optimizer": None})
    first = model.predict_one({"a": 1.0, "new": 2.0})
    assert model.predict_one({"a": 1.0, "new": 2.0}) == first
    assert pickle.dumps(model.__getstate__() | {"optimizer": None}) == before


@pytest.mark.parametrize(
    "make", [*(lambda kind=kind: small(kind, max_features=3) for kind in KINDS), lambda: OnlineRegressor(leaky(3, 1))]
)
def test_nothing_is_compiled_after_the_first_sample(make):
    model, compiled = make(), []
    stream = echo(6) if isinstance(model, OnlineClassifier) else numbers(6)
    model.learn_one(*stream[0])
    model.predict_one(stream[0][0])
    count = lambda event, *_, **__: compiled.append(event) if event.endswith("backend_compile_duration") else None
    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        for x, y in stream[1:]:  # new classes, new and missing features: the same programs
            model.predict_one({"a": x["a"]})
            model.learn_one(x | {"c": 1.0}, y)
    finally:
        jax.monitoring.unregister_event_duration_listener(count)
    assert compiled == []


def test_memory_of_the_past_is_learned():
    model = OnlineClassifier("GRU", optimizer=optax.adam(0.02), n_hidden=8, max_classes=2)
    late = metrics.Accuracy()
    for step, (x, y) in enumerate(echo(500)):
        if step >= 250:
            late.update(y, model.predict_one(x))
        model.learn_one(x, y)
    assert late.get() > 0.8  # one half without memory


def test_reset_begins_a_sequence_anew_and_keeps_the_weights():
    model = learned(small(OnlineRegressor), numbers(4))
    start, params = model.learner.init(), model.params
    assert jnp.any(model.carry.state["h"] != 0)
    model.reset()
    assert_close(model.carry, start)
    assert model.params is params


def test_advance_takes_the_state_without_learning():
    one, other = (learned(small(OnlineRegressor), numbers(4)) for _ in range(2))
    x, y = numbers(5)[4]
    params = one.params
    one.advance_one(x)
    other.learn_one(x, y, w=0.0)
    assert_close(one.params, params)
    assert_close(other.params, params)
    assert_close(one.carry, other.carry)
    assert jnp.any(one.carry.state["h"] != learned(small(OnlineRegressor), numbers(4)).carry.state["h"])


def test_weight_scales_the_update():
    stream = numbers(1)
    models = [small(OnlineRegressor) for _ in range(2)]
    for model, weight in zip(models, (1.0, 3.0), strict=True):
        model.learn_one(*stream[0], w=weight)
    first = train.network("RNN", 2, 1, 3, key=0).params
    moved = [jax.tree.map(jnp.subtract, model.params, first) for model in models]
    assert_close(moved[1], jax.tree.map(lambda change: 3.0 * change, moved[0]))


def test_a_missing_feature_is_zero_and_the_order_of_a_dictionary_means_nothing():
    models = [small(OnlineRegressor) for _ in range(3)]
    for model, x in zip(models, ({"a": 1.0, "b": 0.0}, {"b": 0.0, "a": 1.0}, {"a": 1.0}), strict=True):
        model.learn_one({"b": 1.0, "a": 2.0}, 1.0)
        model.learn_one(x, 0.5)
    for model in models[1:]:
        assert model.feature_names == ["a", "b"]
        assert_close((model.params, model.carry), (models[0].params, models[0].carry))


def test_features_have_the_order_that_is_given():
    model = small(OnlineRegressor, features=["b", "a"])
    model.learn_one({"a": 1.0}, 1.0)
    assert model.feature_names == ["b", "a"]


def test_a_new_feature_takes_a_place_that_is_reserved():
    model = small(OnlineRegressor, max_features=2, new_features="error")
    model.learn_one({"b": 1.0}, 1.0)
    model.learn_one({"a": 1.0}, 1.0)
    assert model.feature_names == ["b", "a"]
    with pytest.raises(ValueError, match=r"feature 'c' is new, and all 2 inputs .* `max_features=`"):
        model.learn_one({"c": 1.0}, 1.0)


def test_a_feature_without_a_place_is_ignored_with_one_warning():
    model, other = small(OnlineRegressor), small(OnlineRegressor, new_features="ignore")
    for each in (model, other):
        each.learn_one({"a": 1.0}, 1.0)
    with pytest.warns(NewFeatureWarning, match="feature 'c' is new") as caught:
        model.learn_one({"a": 1.0, "c": 5.0}, 1.0)
    assert caught[0].filename == __file__
    model.learn_one({"a": 1.0, "c": 6.0}, 1.0)
    for _ in range(2):
        other.learn_one({"a": 1.0}, 1.0)
    assert_close(model.params, other.params)


@per_kind
@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "red"])
def test_what_is_no_number_is_refused_by_name(kind, value):
    model = small(kind)
    for call in (lambda: model.learn_one({"hue": value}, 1), lambda: model.predict_one({"hue": value})):
        with pytest.raises((ValueError, TypeError), match="feature 'hue' is"):
            call()
    assert model.feature_names == []


def test_classes_appear_over_time_up_to_a_stated_number():
    model = small(OnlineClassifier, max_classes=3)
    for label in ("red", "green", "blue"):
        model.learn_one({"a": 1.0}, label)
    assert model.classes == ["red", "green", "blue"]
    assert sum(model.predict_proba_one({"a": 1.0}).values()) == pytest.approx(1.0, rel=1e-12)
    with pytest.raises(ValueError, match=r"class 'grey' is new, and the network has 3 outputs, .*`max_classes=`"):
        model.learn_one({"a": 1.0}, "grey")
    assert model.classes == ["red", "green", "blue"]


@pytest.mark.parametrize("target", [None, float("nan")])
@per_kind
def test_a_target_that_is_none_is_refused(kind, target):
    with pytest.raises(ValueError, match=r"of sample 1 is (None|nan)"):
        small(kind).learn_one({"a": 1.0}, target)


def test_a_step_that_is_not_finite_is_not_taken():
    model = small(OnlineRegressor)
    model.learn_one({"a": 1.0}, 1.0)
    params = model.params
    with pytest.raises(ft.NonFiniteError, match=r"Sample 2 .*StandardScaler"):
        model.learn_one({"a": 1.0}, 1e300)
    assert model.params is params


@pytest.mark.parametrize(
    "model",
    [leaky(2, 1), leaky(2, 1, (1,)), leaky, train.network("RNN", 2, 1, 3), lambda i, o: train.network("LIF", i, o, 3)],
    ids=["learner", "learner of a batch of one", "function", "network", "function of a network"],
)
def test_model_may_be_a_learner_a_network_or_a_function(model):
    regressor = learned(OnlineRegressor(model, None, optax.sgd(0.01)), numbers(3)).clone()
    assert regressor.params is None
    learned(regressor, numbers(2))
    assert regressor.learner.rule.name == "D_RTRL"
    assert np.isfinite(regressor.predict_one({"a": 1.0}))


def test_rule_of_a_learner_may_be_another():
    model = OnlineRegressor(leaky(2, 1), ft.pp_prop(decay_or_rank=0.9), optax.sgd(0.01))
    assert learned(model, numbers(2)).learner.rule.name == "pp_prop"


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: OnlineRegressor("GRUU"), "no cell 'GRUU'"),
        (lambda: OnlineRegressor(rule="D_RTL"), "no rule `D_RTL`"),
        (lambda: OnlineRegressor(optimizer=optax.sgd), "`optimizer` is an object with `init`"),
        (lambda: OnlineRegressor(new_features="grow"), "`new_features` is 'warn', 'ignore' or 'error'"),
        (lambda: OnlineRegressor(3), "`model` is the name of a cell"),
        (lambda: OnlineRegressor(leaky(2, 1), max_features=3), "its own number of inputs"),
        (lambda: OnlineRegressor(features=["a", "a"]), "'a' stands there 2 times"),
        (lambda: OnlineRegressor(lambda i, o: None).learn_one({"a": 1.0}, 1.0), "should give a network"),
        (lambda: OnlineRegressor(leaky(2, 2)).learn_one({"a": 1.0}, 1.0), "A regressor has one output"),
        (lambda: OnlineClassifier(leaky(2, 1)).learn_one({"a": 1.0}, 1), "at least 2; this network has 1"),
        (lambda: OnlineRegressor(leaky(2, 1, (3,))).learn_one({"a": 1.0}, 1.0), r"compiled with \(3, 2\)"),
        (lambda: OnlineRegressor(leaky(1, 1), features=["a", "b"]).learn_one({}, 1.0), "names 2 features"),
    ],
)
def test_what_does_not_fit_is_refused(make, problem):
    with pytest.raises((TypeError, ValueError), match=problem):
        make()


def test_copies_go_on_from_where_the_model_is():
    model = learned(OnlineRegressor("RNN", n_hidden=3), numbers(3))  # the default optimizer can be pickled
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.predict_one({"a": 1.0}) == model.predict_one({"a": 1.0})
        learned(twin, numbers(4))
        assert twin.predict_one({"a": 1.0}) != model.predict_one({"a": 1.0})


def test_evaluation_pipelines_and_metrics_of_river():
    model = preprocessing.StandardScaler() | small(OnlineClassifier)
    scores = list(evaluate.iter_progressive_val_score(echo(10), model, metrics.Accuracy() + metrics.F1(), step=5))
    assert [score["Step"] for score in scores] == [5, 10]
    model = preprocessing.StandardScaler() | preprocessing.TargetStandardScaler(regressor=small(OnlineRegressor))
    assert evaluate.progressive_val_score(numbers(10), model, metrics.MAE()).get() < 2
    assert evaluate.progressive_val_score(echo(10), small(OnlineClassifier), metrics.LogLoss()).get() < 10


def test_memory_is_that_of_the_arrays():
    model = learned(small(OnlineRegressor), numbers(1))
    arrays = sum(leaf.nbytes for leaf in jax.tree.leaves((model.params, model.carry)))
    assert arrays <= model._raw_memory_usage < arrays + 1000


CHECKS = [pytest.param(kind, check, id=f"{kind.__name__}-{check.__name__}-{number}") for kind in KINDS
          for number, check in enumerate(checks.yield_checks(kind()))]  # fmt: skip


@pytest.mark.parametrize(("kind", "check"), CHECKS)
@pytest.mark.slow
def test_checks_of_river(kind, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NewFeatureWarning)
        check(kind("RNN", n_hidden=3))
