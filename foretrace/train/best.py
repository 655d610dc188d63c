"""The network at its best: as it was at the validation with the lowest loss."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from foretrace._optional import is_brainstate_module, is_instance
from foretrace._repr import arrays_text, listed, one_line
from foretrace.train.checkpoint import CheckpointError
from foretrace.train.progress import described


@dataclass(frozen=True)
class Best:
    """A network at the validation with the lowest loss so far.

    Attributes:
        iteration: The iteration after which it was validated.
        metrics: What that validation measured.
        params: The parameters, in the form of `Result.params`.
        persistent: What else of a module outlives a trial, such as running statistics; None for a function.

    Examples:
        See `docs/training.md`.
    """

    iteration: int
    metrics: dict[str, Any]
    params: Any
    persistent: Any = None

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield f"iteration {self.iteration}"
        yield listed(described(self.metrics))
        yield f"parameters: {arrays_text(self.params)}"

    def restore(self, module: Any) -> Any:
        """Puts the values into a module: the one that was trained, or another one of its form.

        Args:
            module: A brainstate module, or a learner of one.

        Returns:
            The module.

        Raises:
            TypeError: It is no module.
            CheckpointError: The parameters are those of another network.
        """
        model = module.model if hasattr(module, "pure") else module
        if not is_brainstate_module(model):
            raise TypeError(f"Values are put into a brainstate module; got {type(module).__name__}. Take `.params`.")
        states = dict(model.states().items())
        weights = {path: state for path, state in states.items() if is_instance(state, "brainstate", "ParamState")}
        given = {path: self.params.get(path) for path in weights} if isinstance(self.params, dict) else {}
        if _form(given) != _form({path: state.value for path, state in weights.items()}):
            raise CheckpointError(f"The parameters are not those of {type(model).__name__}: names or shapes differ.")
        for path, value in {**(self.persistent or {}), **given}.items():
            if path in states:
                states[path].value = value
        return module


def _form(values: Any) -> Any:
    return jax.tree.structure(values), [jnp.shape(leaf) for leaf in jax.tree.leaves(values)]
