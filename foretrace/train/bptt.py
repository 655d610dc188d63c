"""Backpropagation through time as a baseline, and the way from anything that can be trained to the loop's contract."""

from dataclasses import dataclass
from typing import Any

import brainstate

from foretrace.learners import ETraceAlgorithm, FunctionLearner
from foretrace.train.contract import Trainable
from foretrace.train.functions import FunctionBPTT, FunctionTrainable, state_of
from foretrace.train.modules import ModuleBPTT, ModuleTrainable


@dataclass(frozen=True)
class BPTT:
    """Takes the place of a learner in `fit`: gradients by reverse mode, back through the whole trial.

    With `update_every=k` in `fit` it is truncated BPTT, back through `k` steps.

    Attributes:
        model: A learner, whose model is then trained without its rule; a step function; or a brainstate module.

    Examples:
        >>> from foretrace import train
        >>> net = train.network("RNN", n_inputs=2, n_outputs=1, n_hidden=4)
        >>> train.BPTT(net.step).model is net.step
        True
    """

    model: Any

    def __post_init__(self) -> None:
        if not isinstance(self.model, FunctionLearner | brainstate.nn.Module) and not callable(self.model):
            raise TypeError(f"BPTT takes a learner, a step function or a module; got {type(self.model).__name__}.")


def as_trainable(learner: Any, params: Any, state: Any, batch_size: int, seed: int) -> Trainable:
    """Whatever `fit` was given, behind the loop's contract.

    Raises:
        TypeError: It is no learner, or parameters are missing or given where there is no place for them.
    """
    exact = isinstance(learner, BPTT)
    model = learner.model if isinstance(learner, BPTT) else learner
    if isinstance(model, brainstate.nn.Module):
        return _module(model, exact, params, state, batch_size, seed)
    if isinstance(model, FunctionLearner):
        _require("params", params)
        begin = state_of(model, state)
        return FunctionBPTT(model.model.step, params, begin) if exact else FunctionTrainable(model, params, begin)
    if exact:
        _require("params", params)
        _require("state", state)
        return FunctionBPTT(model, params, state)
    raise TypeError(
        f"`fit` trains a learner from `foretrace.compile`, or `train.BPTT(model)`; got {type(learner).__name__}."
    )


def _module(model: brainstate.nn.Module, exact: bool, params: Any, state: Any, batch_size: int, seed: int) -> Trainable:
    if params is not None or state is not None:
        raise TypeError("A module holds its own parameters and states: leave out `params` and `state`.")
    if exact:
        return ModuleBPTT(model, batch_size, seed)
    if isinstance(model, ETraceAlgorithm):
        return ModuleTrainable(model, batch_size, seed)
    raise TypeError(
        f"{type(model).__name__} is a module without a rule: make a learner of it by `foretrace.compile`, or train it "
        "back through time as `train.BPTT(model)`."
    )


def _require(name: str, value: Any) -> None:
    if value is None:
        raise TypeError(f"A step function is trained with `{name}=` given to `fit`.")
