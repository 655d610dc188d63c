"""What a candidate needs and gives: the memory that XLA plans for its gradient, and that gradient on a stretch of data.

The memory is that of one call of `grad` over `length` steps: parameters, states and traces, gradients, losses, and all
that XLA holds in between. The carry is donated, so that traces count once; inputs and targets do not count. XLA plans
it from shapes alone, and nothing is run for it.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from foretrace._checks import require_count
from foretrace.errors import NotSupportedError
from foretrace.learners.blocks import trace_bytes
from foretrace.learners.budget.candidates import Candidate
from foretrace.learners.learner import Learner, at_start
from foretrace.learners.sequences import length_of
from foretrace.rules.bptt import BPTT

STRETCH = 512  # steps of a made-up stretch, at most


class Sample(NamedTuple):
    """The data that gradients are compared on.

    Attributes:
        xs: Inputs, time first.
        ys: Targets, time first, or None.
        loss: The loss of one step.
        given: Whether it is the user's.
    """

    xs: Any
    ys: Any
    loss: Callable[..., Any]
    given: bool


class Agreement(NamedTuple):
    """How near a gradient is to that of BPTT.

    Attributes:
        cosine: The cosine of the angle between both.
        error: The norm of their difference over that of BPTT's.
    """

    cosine: float
    error: float


EXACT = Agreement(1.0, 0.0)


def measured_for(learner: Any, length: Any, sample: Any, loss: Any) -> "Measured":
    """What is measured of a model, on what a user gave.

    Args:
        learner: A learner of the model, by any rule.
        length: Steps in a sequence; None for those of the sample.
        sample: Inputs, or a pair of inputs and targets, time first; None to make some up.
        loss: The loss of one step, which a sample needs.
    """
    if (sample is None) != (loss is None):
        raise TypeError("`sample` and `loss` go together: `sample=(xs, ys), loss=lambda out, y: ...`.")
    if length is None and sample is None:
        raise TypeError('"auto" needs `length=`, the steps in a sequence, or a `sample` that has as many.')
    pure, params, state = at_start(learner, None, None, '"auto"')
    if sample is None:
        length = require_count("length", length)
        return Measured(pure, params, state, length, made_up(pure, length))
    if not isinstance(sample, tuple | list) or len(sample) != 2:
        raise TypeError("`sample` is a pair `(xs, ys)` of inputs and targets, time first; `ys` may be None.")
    xs, ys = jax.tree.map(jnp.asarray, tuple(sample))
    length = length_of(xs) if length is None else require_count("length", length)
    return Measured(pure, params, state, length, Sample(xs, ys, loss, given=True))


def made_up(learner: Learner, length: int) -> Sample:
    """A stretch of inputs of the size of the example input, and random derivatives of the loss by the outputs."""
    rng, steps = np.random.default_rng(0), min(length, STRETCH)
    args, kwargs = learner.model.flat.inputs.unflatten([_drawn(rng, steps, a) for a in learner.model.flat.inputs.avals])
    xs = args[0] if len(args) == 1 and not kwargs else args
    ys = [_drawn(rng, steps, leaf.aval) for leaf in learner.plan.program.outputs]

    def loss(out: Any, y: Any) -> Any:
        pairs = [(a, b) for a, b in zip(jax.tree.leaves(out), y, strict=True) if jnp.issubdtype(a.dtype, jnp.inexact)]
        return sum((jnp.sum(jnp.real(a * b)) for a, b in pairs), start=jnp.zeros(()))

    return Sample(xs, ys, loss, given=False)


def _drawn(rng: np.random.Generator, steps: int, aval: Any) -> Any:
    shape = (steps, *aval.shape)
    if jnp.issubdtype(aval.dtype, jnp.inexact):
        return jnp.asarray(rng.normal(size=shape), aval.dtype)
    return jnp.asarray(rng.integers(0, 2, size=shape), aval.dtype)


class Measured:
    """The memory and the gradients of the candidates of one model, each found once.

    Args:
        learner: A learner of the model, by any rule.
        params: The parameters.
        state: The state that sequences start from.
        length: Steps in a sequence.
        sample: The data.
    """

    def __init__(self, learner: Learner, params: Any, state: Any, length: int, sample: Sample) -> None:
        self.learner, self.params, self.state, self.length, self.sample = learner, params, state, length, sample
        self.stretch = min(length, int(jnp.shape(jax.tree.leaves(sample.xs)[0])[0]))
        self._compiled: dict[tuple[Candidate, int], Any] = {}
        self._found: dict[Candidate, Agreement] = {}
        self._reference: Any = None

    def learner_of(self, candidate: Candidate) -> Learner:
        return dataclasses.replace(
            self.learner, rule=candidate.rule, window=candidate.window, block=candidate.block, choice=None
        )

    def least(self, candidate: Candidate) -> int:
        """Bytes that a candidate takes at least: parameters, gradients, states and traces."""
        return 2 * _bytes(self.params) + _bytes(self.state) + trace_bytes(self.learner.plan, candidate.rule)

    def bytes(self, candidate: Candidate) -> int:
        """What XLA plans for the gradient of a sequence, beside its data."""
        found = self._of(candidate, self.length).memory_analysis()
        total = found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
        return int(total - found.alias_size_in_bytes - _bytes(self._data(self.length)))

    def agreement(self, candidate: Candidate) -> Agreement:
        """The gradient on the stretch beside that of BPTT."""
        if candidate not in self._found:
            if self._reference is None:
                self._reference = self._gradient(Candidate(BPTT(segment=max(1, int(self.stretch**0.5)))))
            self._found[candidate] = compare(self._gradient(candidate), self._reference)
        return self._found[candidate]

    def supports(self, candidate: Candidate) -> bool:
        """Whether the rule takes the model."""
        try:
            jax.eval_shape(lambda: candidate.rule.init(self.learner.plan))
        except NotSupportedError:
            return False
        return True

    def _gradient(self, candidate: Candidate) -> np.ndarray:
        xs, ys = jax.tree.map(lambda a: a[: self.stretch], (self.sample.xs, self.sample.ys))
        carry = jax.tree.map(jnp.array, self.learner_of(candidate).init(self.state))
        grads = self._of(candidate, self.stretch)(self.params, carry, xs, ys)[0]
        flat = self.learner.model.flatten_params(grads)
        return np.concatenate([np.ravel(np.asarray(g)).astype(np.complex128) for g in flat])

    def _data(self, steps: int) -> Any:
        longer = lambda a: jax.ShapeDtypeStruct((steps, *jnp.shape(a)[1:]), jnp.result_type(a))
        return jax.tree.map(longer, (self.sample.xs, self.sample.ys))

    def _of(self, candidate: Candidate, steps: int) -> Any:
        if (candidate, steps) not in self._compiled:
            one = self.learner_of(candidate)

            def gradient(params: Any, carry: Any, xs: Any, ys: Any) -> Any:
                return one.grad(params, carry, xs, ys, loss=self.sample.loss)

            form = lambda a: jax.ShapeDtypeStruct(jnp.shape(a), jnp.result_type(a))
            params, carry = jax.tree.map(form, (self.params, jax.eval_shape(one.init, self.state)))
            lowered = jax.jit(gradient, donate_argnums=1).lower(params, carry, *self._data(steps))
            self._compiled[candidate, steps] = lowered.compile()
        return self._compiled[candidate, steps]


def compare(found: np.ndarray, reference: np.ndarray) -> Agreement:
    """One gradient beside another; a gradient of zero is exact where the other is zero too."""
    mine, other = float(np.linalg.norm(found)), float(np.linalg.norm(reference))
    if other == 0.0:
        return EXACT if mine == 0.0 else Agreement(0.0, float("inf"))
    cosine = float(np.real(np.vdot(reference, found))) / (mine * other) if mine and np.isfinite(mine) else 0.0
    error = float(np.linalg.norm(found - reference)) / other
    return Agreement(cosine, error if np.isfinite(error) else float("inf"))


def _bytes(tree: Any) -> int:
    return sum(int(np.prod(jnp.shape(a), dtype=np.int64)) * jnp.result_type(a).itemsize for a in jax.tree.leaves(tree))
