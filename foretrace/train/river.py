"""Networks as models of river: `learn_one` and `predict_one` over a stream, with its metrics, pipelines and evaluation.

    model = preprocessing.StandardScaler() | OnlineClassifier("GRU", "D_RTRL", optax.adam(3e-3))
    evaluate.progressive_val_score(dataset, model, metrics.Accuracy())

The recurrent state runs through the stream: that is what sets these models apart from river's own. river calls
`predict_one(x)` and then `learn_one(x, y)` with the same sample. A prediction evaluates the step from the present state
and changes nothing. Learning takes the step: gradient by the rule, one update of the weights, and on to the next state.
"""

import math
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from foretrace._checks import (
    is_number,
    optional_count,
    require_choice,
    require_count,
    require_number,
    require_optimizer,
)
from foretrace.errors import NonFiniteError
from foretrace.learners import Carry, Learner
from foretrace.rules import find_rule
from foretrace.train.features import POLICIES, Features, NewFeatureWarning, checked_number, names_of
from foretrace.train.networks import CELLS, Network, network
from foretrace.train.online import OnlineSteps, online_steps
from foretrace.train.streaming.learning import StreamState

try:
    from river import base
except ModuleNotFoundError as error:
    if error.name != "river":
        raise
    raise ImportError("`foretrace.train.river` needs river: pip install 'foretrace[river]'", name="river") from error

__all__ = ["NewFeatureWarning", "OnlineClassifier", "OnlineRegressor"]

RULE, LEARNING_RATE = "D_RTRL", 0.003


class _Online:
    """What classifier and regressor share: the network, its place in the stream, and the features.

    `_steps` holds compiled programs. They are left out of pickles and copies, and made again when needed.
    """

    def __init__(
        self,
        model: Any,
        rule: Any,
        optimizer: Any,
        n_hidden: int,
        features: Sequence[Hashable] | None,
        max_features: int | None,
        new_features: str,
        seed: int,
    ) -> None:
        self.model, self.rule, self.optimizer = model, rule, optimizer
        self.n_hidden = require_count("n_hidden", n_hidden, "units")
        self.features = features
        self.max_features = optional_count("max_features", max_features, "features")
        self.new_features, self.seed = new_features, require_count("seed", seed, "draws", least=0)
        require_choice("new_features", new_features, POLICIES)
        _check_model(model, max_features)
        if isinstance(rule, str):
            find_rule(rule)
        if optimizer is not None:
            require_optimizer("optimizer", optimizer)
        self._named = None if features is None else names_of(features)
        self._known: Features | None = None
        self._at: StreamState | None = None
        self._steps: OnlineSteps | None = None
        self._count = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_steps": None}

    @property
    def learner(self) -> Learner | None:
        """The learner behind the model; None before the first sample is learned."""
        return None if self._at is None else self._ready().learner

    @property
    def params(self) -> Any:
        """The weights; None before the first sample is learned."""
        return None if self._at is None else self._at.params

    @property
    def carry(self) -> Carry | None:
        """The network's state and the rule's trace; None before the first sample is learned."""
        return None if self._at is None else self._at.carry

    @property
    def feature_names(self) -> list[Hashable]:
        """The features in the order of the network's inputs, as far as they are known."""
        return list(self._known.places) if self._known else list(self._named or [])

    def reset(self) -> None:
        """Begins a new sequence: the state and the traces are those of the start, weights and optimizer stay."""
        if self._at is not None:
            self._at = self._at._replace(carry=self._ready().start().carry)

    def advance_one(self, x: Mapping[Hashable, Any]) -> None:
        """Takes the state and the traces through a sample that has no target, without learning.

        Args:
            x: The features.
        """
        at, row = self._enter(x)
        self._at = self._ready().advance(at, row)

    @property
    def _raw_memory_usage(self) -> int:
        """Bytes of weights, optimizer, state and traces; river's own count does not see arrays of JAX."""
        return sys.getsizeof(self) + sum(leaf.nbytes for leaf in jax.tree.leaves(self._at) if hasattr(leaf, "nbytes"))

    def _readout(self, x: Mapping[Hashable, Any]) -> np.ndarray | None:
        """What the network says to a sample in its present state; None before the first sample is learned."""
        if self._at is None or self._known is None:
            for name, value in x.items():
                checked_number(name, value)
            return None
        steps = self._ready()
        return np.asarray(steps.predict(self._at, self._known.row(x, steps.dtype)), float)

    def _learn(self, x: Mapping[Hashable, Any], target: Callable[[OnlineSteps], Any], weight: float) -> None:
        require_number("w", weight, "a weight of the sample from 0 on", low=0.0)
        at, row = self._enter(x)
        steps = self._ready()
        after, loss, finite = steps.learn(at, row, target(steps), np.asarray(weight, steps.dtype))
        if not finite:
            raise NonFiniteError(
                f"Sample {self._count + 1} of the stream is not learned: its loss is {float(loss)}, and the weights "
                "would not be finite. Scale the features (`preprocessing.StandardScaler()`) and the target "
                "(`preprocessing.TargetStandardScaler`), or take smaller steps. The model stays as it was."
            )
        self._at, self._count = after, self._count + 1

    def _enter(self, x: Mapping[Hashable, Any]) -> tuple[StreamState, np.ndarray]:
        """The present position and the inputs of a sample, whose new features take their places."""
        for name, value in x.items():
            checked_number(name, value)
        known = self._first(x) if self._known is None else self._known
        known.admit(x)
        steps = self._ready(known.size)
        self._known, self._at = known, steps.start() if self._at is None else self._at
        return self._at, known.row(x, steps.dtype)

    def _first(self, x: Mapping[Hashable, Any]) -> Features:
        """The places of the features that were named; those of the first sample are admitted behind them."""
        named = self._named or []
        if isinstance(self.model, Network):
            size = self.model.n_inputs
        elif _is_learner(self.model):
            size = self._ready(None).n_inputs
        else:
            size = self.max_features or max(1, len(x) if self._named is None else len(named))
        if len(named) > size:
            raise ValueError(f"`features` names {len(named)} features, and the network has {size} inputs.")
        return Features(size, self.new_features, {name: place for place, name in enumerate(named)})

    def _ready(self, n_inputs: int | None = None) -> OnlineSteps:
        """The compiled programs, made where there are none yet: for so many inputs, or for those of the stream."""
        if self._steps is None:
            size = self._known.size if n_inputs is None and self._known is not None else n_inputs
            steps = online_steps(self._learner_for(size), self.optimizer or _default_optimizer(), self._loss)
            if size is not None and steps.n_inputs != size:
                raise ValueError(f"The model that was made has {steps.n_inputs} inputs; {size} were asked for.")
            self._check_outputs(steps.n_outputs)
            self._steps = steps
        return self._steps

    def _learner_for(self, n_inputs: int | None) -> Learner:
        """The learner of the model that was given, for so many inputs."""
        made: Any = self.model
        if isinstance(made, str):
            made = network(made, n_inputs or 1, self._n_outputs, self.n_hidden, key=self.seed)
        elif not (_is_learner(made) or isinstance(made, Network)):
            made = made(n_inputs, self._n_outputs)
        if isinstance(made, Network):
            return made.compile(RULE if self.rule is None else self.rule, batch_size=1)
        if not _is_learner(made):
            raise TypeError(
                f"`model({n_inputs}, {self._n_outputs})` gives a {type(made).__name__}, and should give a network "
                "(`train.network(...)`) or a learner (`foretrace.compile(...)`)."
            )
        return made if self.rule is None else made.with_rule(self.rule)

    @property
    def _n_outputs(self) -> int:
        raise NotImplementedError

    def _check_outputs(self, found: int) -> None:
        raise NotImplementedError

    def _loss(self, readout: jax.Array, target: Any) -> jax.Array:
        raise NotImplementedError


class OnlineClassifier(_Online, base.Classifier):
    """A recurrent network that tells the classes of a stream, one sample at a time.

    Classes are any hashable labels. Each takes an output of the network when it is first learned, and the probabilities
    are those of the classes seen so far. Before the first sample is learned there is no prediction: `{}`, and None.

    Args:
        model: The network: a cell by name (`'GRU'`, `'LRU'`, ...; see `foretrace.train.network`); a `Network`; a
            learner from `foretrace.compile`; or a function `(n_inputs, n_outputs) -> network or learner`, called when
            the features are known.
        rule: The learning rule, by name, class or record; None for D-RTRL, or the rule of the learner.
        optimizer: An optax gradient transformation; None for `optax.adam(0.003)`.
        n_hidden: Units of a network that is named.
        max_classes: Outputs of a network that is made here: as many classes can be learned. A network or a learner that
            was given has its own number.
        features: Names of features in the order of the inputs; None for those of the first sample, sorted by name.
        max_features: Inputs of a network that is made here; None for as many as `features`, or the first sample, has.
            What is left over is for features that appear later.
        new_features: What to do with a feature when no input is left: `'warn'` (ignore it, with one warning),
            `'ignore'` or `'error'`. In a prediction it is ignored.
        seed: Seeds the weights of a network that is named.

    Examples:
        >>> from foretrace.train.river import OnlineClassifier
        >>> model = OnlineClassifier("GRU", "D_RTRL", n_hidden=4)
        >>> model.predict_proba_one({"level": 0.5})
        {}
        >>> model.learn_one({"level": 0.5}, "low")
        >>> model.predict_one({"level": 0.5})
        'low'
    """

    def __init__(
        self,
        model: Any = "GRU",
        rule: Any = None,
        optimizer: Any = None,
        *,
        n_hidden: int = 32,
        max_classes: int = 10,
        features: Sequence[Hashable] | None = None,
        max_features: int | None = None,
        new_features: str = "warn",
        seed: int = 0,
    ) -> None:
        super().__init__(model, rule, optimizer, n_hidden, features, max_features, new_features, seed)
        self.max_classes = require_count("max_classes", max_classes, "classes", least=2)
        self._classes: dict[Hashable, int] = {}

    @property
    def classes(self) -> list[Hashable]:
        """The classes that were learned, in the order of the network's outputs."""
        return list(self._classes)

    def learn_one(self, x: Mapping[Hashable, Any], y: Hashable, w: float = 1.0) -> None:
        """Learns a sample, and takes the state through it.

        Args:
            x: The features.
            y: The class.
            w: The weight of its loss. At 0 the sample gives no gradient, and state and traces go on.
        """
        if y is None or y != y:
            raise ValueError(
                f"The class of sample {self._count + 1} is {y!r}: a sample without one is no sample to learn."
            )
        place = self._classes.get(y, len(self._classes))

        def target(steps: OnlineSteps) -> Any:
            if place >= steps.n_outputs:
                raise ValueError(
                    f"The class {y!r} is new, and the network has {steps.n_outputs} outputs, all taken: "
                    f"{', '.join(map(repr, self._classes))}. Give `max_classes=`, or a network with more outputs."
                )
            return np.int32(place), np.int32(max(place + 1, len(self._classes)))

        self._learn(x, target, w)
        self._classes[y] = place

    def predict_proba_one(self, x: Mapping[Hashable, Any]) -> dict[Hashable, float]:
        """The probability of each class seen so far, from the present state, which stays as it is.

        Args:
            x: The features.
        """
        readout = self._readout(x)
        if readout is None or not self._classes:
            return {}
        logits = readout[: len(self._classes)]
        weights = np.exp(logits - logits.max())
        return dict(zip(self._classes, (weights / weights.sum()).tolist(), strict=True))

    @property
    def _multiclass(self) -> bool:
        return True

    @property
    def _n_outputs(self) -> int:
        return self.max_classes

    def _check_outputs(self, found: int) -> None:
        if found < 2:
            raise ValueError(f"A classifier has an output for each class, at least 2; this network has {found}.")

    def _loss(self, readout: jax.Array, target: Any) -> jax.Array:
        """Cross-entropy over the classes seen so far."""
        label, known = target
        seen = jnp.arange(readout.shape[0]) < known
        return -jax.nn.log_softmax(jnp.where(seen, readout, jnp.finfo(readout.dtype).min))[label]


class OnlineRegressor(_Online, base.Regressor):
    """A recurrent network that follows the target of a stream, one sample at a time, by its squared error.

    Before the first sample is learned the prediction is 0. A target far from 0 and 1 in size is best scaled:
    `preprocessing.TargetStandardScaler(regressor=OnlineRegressor())`.

    Args:
        model: The network: a cell by name (`'GRU'`, `'LRU'`, ...; see `foretrace.train.network`); a `Network`; a
            learner from `foretrace.compile`; or a function `(n_inputs, n_outputs) -> network or learner`, called when
            the features are known. It has one output.
        rule: The learning rule, by name, class or record; None for D-RTRL, or the rule of the learner.
        optimizer: An optax gradient transformation; None for `optax.adam(0.003)`.
        n_hidden: Units of a network that is named.
        features: Names of features in the order of the inputs; None for those of the first sample, sorted by name.
        max_features: Inputs of a network that is made here; None for as many as `features`, or the first sample, has.
            What is left over is for features that appear later.
        new_features: What to do with a feature when no input is left: `'warn'` (ignore it, with one warning),
            `'ignore'` or `'error'`. In a prediction it is ignored.
        seed: Seeds the weights of a network that is named.

    Examples:
        >>> from foretrace.train.river import OnlineRegressor
        >>> model = OnlineRegressor("LRU", n_hidden=4)
        >>> model.predict_one({"flow": 0.5})
        0.0
        >>> model.learn_one({"flow": 0.5}, 1.0)
        >>> model.feature_names
        ['flow']
    """

    def __init__(
        self,
        model: Any = "GRU",
        rule: Any = None,
        optimizer: Any = None,
        *,
        n_hidden: int = 32,
        features: Sequence[Hashable] | None = None,
        max_features: int | None = None,
        new_features: str = "warn",
        seed: int = 0,
    ) -> None:
        super().__init__(model, rule, optimizer, n_hidden, features, max_features, new_features, seed)

    def learn_one(self, x: Mapping[Hashable, Any], y: float, w: float = 1.0) -> None:
        """Learns a sample, and takes the state through it.

        Args:
            x: The features.
            y: The target.
            w: The weight of its loss. At 0 the sample gives no gradient, and state and traces go on.
        """
        if not is_number(y) or not math.isfinite(y):
            raise ValueError(f"The target of sample {self._count + 1} is {y!r}, and should be a finite number.")
        self._learn(x, lambda steps: np.asarray(y, steps.dtype), w)

    def predict_one(self, x: Mapping[Hashable, Any]) -> float:
        """The prediction from the present state, which stays as it is.

        Args:
            x: The features.
        """
        readout = self._readout(x)
        return 0.0 if readout is None else float(readout[0])

    @property
    def _n_outputs(self) -> int:
        return 1

    def _check_outputs(self, found: int) -> None:
        if found != 1:
            raise ValueError(f"A regressor has one output; this network has {found}.")

    def _loss(self, readout: jax.Array, target: Any) -> jax.Array:
        return (readout[0] - target) ** 2


def _is_learner(model: Any) -> bool:
    """Whether it is a learner that holds no carry of its own, which would stay behind."""
    return hasattr(type(model), "pure") and model.pure is model


def _check_model(model: Any, max_features: int | None) -> None:
    if isinstance(model, str):
        if model.lower() not in map(str.lower, CELLS):
            raise ValueError(f"There is no cell {model!r}. There are {', '.join(CELLS)}.")
    elif _is_learner(model) or isinstance(model, Network):
        if max_features is not None:
            raise ValueError(f"A {type(model).__name__} has its own number of inputs: leave out `max_features`.")
    elif not callable(model) or hasattr(type(model), "pure"):
        hint = ": pass `learner.pure`" if hasattr(type(model), "pure") else ""
        raise TypeError(
            "`model` is the name of a cell, a network, a learner of `foretrace.compile`, or a function "
            f"`(n_inputs, n_outputs)` that makes one; got a {type(model).__name__}{hint}."
        )


def _default_optimizer() -> Any:
    try:
        import optax
    except ImportError as error:
        raise ImportError("The default optimizer needs optax: pip install 'foretrace[train]'") from error
    return optax.adam(LEARNING_RATE)
