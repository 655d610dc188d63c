"""A model of the user's own in the place of a published network: `--model my.py:step`.

It has what training asks of a network of `foretrace.train`: `compile`, `params`, `init_state` and `settings`. A step
function begins with the state beside it, which may be a function of the batch size; a module makes its own.
"""

import argparse
from typing import Any

from foretrace.cli.arguments import CommandError, UsageError
from foretrace.cli.loading import call_arguments, find_model, load

OF_NETWORKS = ("cell", "hidden", "layers", "cell_set")


def add_model_arguments(parser: Any) -> None:
    """The arguments that name a model."""
    parser.add_argument(
        "--model", metavar="TARGET", help="a model of your own in its place: file.py:Name, as `foretrace inspect` takes"
    )
    parser.add_argument(
        "--model-args", type=call_arguments, metavar="ARGS", help="arguments of its class or function: '3, n_hidden=8'"
    )
    parser.add_argument("--params", default="params", metavar="NAME", help="parameters beside a step function")
    parser.add_argument(
        "--state", default="state", metavar="NAME", help="state beside it: arrays, or a function of the batch size"
    )


class OwnModel:
    """A model of the user's own, as a network to train.

    Args:
        options: Those of the command, with `model`.
        n_inputs: Inputs of the task.

    Raises:
        UsageError: There is no such model, or an option is given that is for published networks.
    """

    cell, n_hidden = "own", 0

    def __init__(self, options: argparse.Namespace, n_inputs: int) -> None:
        given = [f"--{name.replace('_', '-')}" for name in OF_NETWORKS if getattr(options, name)]
        if given:
            raise UsageError(f"{' and '.join(given)} describe a published network: leave them out with --model.")
        self.target, self.n_inputs, self.seed = options.model, n_inputs, options.seed
        self.found = find_model(*load(options.model), options.model_args, (options.params, options.state))
        if hasattr(type(self.found.model), "pure"):
            raise UsageError(f"`{options.model}` is a learner, with a rule of its own: name its model.")
        self.settings: dict[str, Any] = {}
        self.params = self.found.params

    @property
    def batch_size(self) -> int | None:
        """The batch that the state of a step function has; None where any will do."""
        import jax
        import jax.numpy as jnp

        leaves = [] if self.found.begin is not None else jax.tree.leaves(self.found.state)
        return next((int(jnp.shape(leaf)[0]) for leaf in leaves if jnp.ndim(leaf)), None)

    def init_state(self, batch_size: int) -> Any:
        """The state that a trial begins with; None for the one that the learner was compiled with."""
        return self.found.state_for(batch_size)

    def compile(self, rule: Any, batch_size: int, **options: Any) -> Any:
        """The model's learner."""
        import jax.numpy as jnp

        import foretrace

        example = jnp.zeros((batch_size, self.n_inputs))
        if self.found.params is None:
            sizes = {"batch_size": batch_size, "seed": self.seed}
        else:
            own = self.batch_size
            if own not in (None, batch_size):
                raise UsageError(
                    f"The state beside `{self.target}` has a batch of {own}, and --batch is {batch_size}: give "
                    f"--batch {own}, or let the state be a function of the batch size."
                )
            sizes = {"params": self.found.params, "state": self.init_state(batch_size)}
        try:
            learner = foretrace.compile(self.found.model, rule, example, **sizes, **options)
        except foretrace.CompilationError as error:
            raise CommandError(f"`{self.target}`, compiled for {self.n_inputs} inputs of the task: {error}") from error
        self.params = learner.params
        return learner
