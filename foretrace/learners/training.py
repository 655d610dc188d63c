"""What training needs of any learner: the pure learner, what a trial begins with, and who gets the trained values.

Most of a state begins anew with every trial. Some of a module's states outlive it: running statistics, random numbers.
These are *persistent*, and known by their keys in the state.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from foretrace._repr import arrays_text, one_line

if TYPE_CHECKING:
    from foretrace.learners.learner import Carry, Learner


@dataclass(frozen=True)
class Trainable:
    """A learner, ready to be trained.

    Attributes:
        learner: The pure learner.
        params: The parameters to begin with.
        state: The state that a trial begins with.
        persistent: The keys of what outlives a trial, of a state that is a dictionary.
        own: The keys of what belongs in a file of weights, parameters and persistent states; None for all parameters.
        put: Takes parameters and a carry to whoever holds them; None for nobody.
    """

    learner: "Learner"
    params: Any
    state: Any
    persistent: tuple[Any, ...] = ()
    own: frozenset[Any] | None = None
    put: Callable[[Any, "Carry"], None] | None = None

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield repr(self.learner)
        yield f"parameters: {arrays_text(self.params)}; state: {arrays_text(self.state)}"

    @property
    def rule(self) -> str:
        """The rule with its options, in words that tell one setting from another."""
        rule, window = self.learner.rule, self.learner.window
        return f"{rule.name} {rule!r}{'' if window is None else f' in windows of {window}'}"

    def begin(self, persistent: Any) -> "Carry":
        """The carry before the first step of a trial: the first state with what persists, and empty traces."""
        return self.learner.init({**self.state, **persistent} if self.persistent else self.state)

    def persistent_of(self, state: Any) -> Any:
        """What of a state outlives a trial; None for nothing."""
        return {key: state[key] for key in self.persistent} if self.persistent else None

    def weights(self, params: Any, persistent: Any) -> Any:
        """What a file of weights holds: the parameters, and what else of a module outlives a trial."""
        if self.own is None:
            return params
        return {key: value for key, value in {**params, **(persistent or {})}.items() if key in self.own}

    def finish(self, params: Any, persistent: Any, carry: "Carry | None") -> None:
        """Hands the trained values to whoever holds them."""
        if self.put is not None:
            self.put(params, self.begin(persistent) if carry is None else carry)
