"""What goes on from call to call, checked before it is used: a rule's trace, and the state of an optimizer."""

from typing import Any

import jax
import jax.numpy as jnp

from foretrace._checks import require_optimizer
from foretrace.engine.plan import Plan
from foretrace.errors import StateMismatchError
from foretrace.frontends.trees import TreeSpec, structure_difference, tree_spec
from foretrace.rules.rule import Rule


class TraceForm:
    """The form of a rule's trace on a model."""

    def __init__(self, rule: Rule, plan: Plan) -> None:
        self.rule = rule
        self.spec: TreeSpec = tree_spec(jax.eval_shape(lambda: rule.init(plan)), prefix=("trace",))

    def checked(self, trace: Any) -> Any:
        """The trace, its arrays checked against the form.

        Raises:
            StateMismatchError: It has another structure, shape or dtype.
        """
        if structure_difference(self.spec, tree_spec(trace)):
            raise StateMismatchError(
                f"This is no trace of {self.rule.name} on this model, but of another rule, of other options or of "
                "another model. A trace goes on with the learner that made it: begin with `learner.init(state)`."
            )
        advice = (
            "This is the trace of a learner for another batch size or `trace_dtype`. A trace goes on with the learner "
            "that made it: begin with `learner.init(state)`."
        )
        return self.spec.unflatten(self.spec.flatten(trace, StateMismatchError, advice))


def begin_optimizer(optimizer: Any, opt_state: Any, params: Any) -> Any:
    """The state that an optimizer starts from: the given one, checked, or a new one for None."""
    require_optimizer("optimizer", optimizer)
    if opt_state is None:
        return optimizer.init(params)
    wanted, found = _form(jax.eval_shape(optimizer.init, params)), _form(opt_state)
    if wanted != found:
        raise ValueError(
            "`opt_state` is not the state of this optimizer for these parameters. Pass what the last call returned, or "
            f"None to begin anew; got {found}, where {wanted} was expected."
        )
    return opt_state


def _form(tree: Any) -> tuple[Any, list[tuple[int, ...]]]:
    """The structure of a tree and the shapes of its leaves."""
    return jax.tree.structure(tree), [jnp.shape(leaf) for leaf in jax.tree.leaves(tree)]
