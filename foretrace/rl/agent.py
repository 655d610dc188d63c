"""Stream AC(lambda): an actor-critic that acts, learns and forgets the step, one observation at a time.

At each step the network gives the logits of the actions and the value of what was observed. With the reward and the
value of the next observation, under the same parameters, follows the TD error

    delta = reward + discount * next_value - value,

the eligibility of actor and critic takes in this step's gradients, `z <- discount * decay * z + gradient`, and the
parameters change along `delta * z` (Elsayed et al. 2024). The gradients are the learner's: of an output now by what
parameters did to the state at all steps before. So there are two kinds of traces, the rule's, through the network's
memory, and the eligibility, from an action to later rewards. All of them begin anew with an episode.
"""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from foretrace._checks import require_flag, require_number, require_optimizer, require_parts
from foretrace._repr import arrays_text, one_line
from foretrace.learners.learner import at_start
from foretrace.rl.credit import Credit, Memory
from foretrace.rl.environment import Environment, moved
from foretrace.rl.scaling import Moments, Returns
from foretrace.rl.updates import Ascent, Eligibility, ObGD
from foretrace.train.losses import take_readout


class AgentState(NamedTuple):
    """All that changes while an agent learns: a pytree.

    Attributes:
        params: The parameters.
        opt_state: The optimizer's state.
        memory: The network's state and the rule's trace.
        eligibility: The eligibility of the parameters.
        environment: The state of the environment.
        x: The present observation, as the network takes it.
        observed: What has been seen of observations.
        returns: What has been seen of returns.
        key: The random key of the steps to come.
    """

    params: Any
    opt_state: Any
    memory: Memory
    eligibility: Eligibility
    environment: Any
    x: jax.Array
    observed: Moments
    returns: Returns
    key: jax.Array

    @one_line
    def __repr__(self) -> Iterator[str]:
        yield f"parameters: {arrays_text(self.params)}; optimizer: {arrays_text(self.opt_state)}"
        yield f"memory: {arrays_text(self.memory)}"


class AgentStep(NamedTuple):
    """What is seen of a step; `run` stacks them.

    Attributes:
        action: The action.
        reward: Its reward, as the environment gave it.
        terminated: Whether the episode ended with it.
        truncated: Whether it was cut off after it.
        delta: The TD error, of scaled rewards where they are scaled.
    """

    action: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    delta: jax.Array

    @property
    def ended(self) -> jax.Array:
        """Whether the episode ended with it or was cut off."""
        return self.terminated | self.truncated


@dataclass(frozen=True, eq=False)
class ActorCritic:
    """An agent that learns by an actor-critic with eligibility, at every step.

    Args:
        learner: A learner from `foretrace.compile`, of a model with one input and for a batch of one. Its output has a
            logit for each action, and then the value. `window=k` gives the last k steps exact credit; with the rule
            `'BPTT'` that is all they get.
        environment: An `Environment`: one of `foretrace.rl`, or one of gymnax.
        optimizer: `ObGD()`, or an optax gradient transformation such as `optax.adam(3e-3, b1=0.0)`.
        discount: How much a reward is worth one step later.
        decay: The lambda of the eligibility.
        entropy: How strongly the policy is kept from being certain.
        critic_weight: What the critic's part counts in the steps of an optax optimizer.
        scale_rewards: Whether rewards are divided by the standard deviation of the discounted return.
        normalise: Whether observations are brought to mean 0 and variance 1.
        env_params: What the environment takes as its parameters; None for its own.
        heads: From what a step returns to logits and value; None for the readout, split behind the actions.

    Raises:
        TypeError: Not a learner, an environment or an optimizer.
        ValueError: A setting out of its range, a rule that takes a signal from outside, or a network whose sizes are
            not those of the environment.

    Examples:
        >>> import jax, optax
        >>> from foretrace import rl, train
        >>> net = train.network("RTU", n_inputs=3, n_outputs=5, n_hidden=8)
        >>> agent = rl.ActorCritic(net.compile("D_RTRL", batch_size=1), rl.TMaze(length=5), optax.adam(3e-3))
        >>> state, steps = agent.run(agent.init(jax.random.key(0)), 50)
        >>> steps.reward.shape
        (50,)
    """

    learner: Any
    environment: Environment
    optimizer: Any = field(default_factory=ObGD)
    discount: float = 0.99
    decay: float = 0.8
    entropy: float = 0.01
    critic_weight: float = 0.5
    scale_rewards: bool = True
    normalise: bool = False
    env_params: Any = None
    heads: Callable[[Any], tuple[Any, Any]] | None = None

    def __post_init__(self) -> None:
        at_start(self.learner, None, None, "An agent")
        require_parts("environment", self.environment, ("reset", "step"), "`rl.TMaze(length=30)`")
        require_optimizer("optimizer", self.optimizer)
        for name in ("discount", "decay"):
            require_number(name, getattr(self, name), "a number from 0 to 1", 0.0, 1.0)
        for name in ("entropy", "critic_weight"):
            require_number(name, getattr(self, name), "a number from 0 on", 0.0)
        for name in ("scale_rewards", "normalise"):
            require_flag(name, getattr(self, name))
        rule = self.learner.pure.rule
        if rule.external is not None:
            raise ValueError(f"{rule.name} learns from `{rule.external}`, which an agent does not have. Take D_RTRL.")
        self._check_sizes()

    @functools.cached_property
    def credit(self) -> Credit:
        """The network, one observation at a time."""
        x = self.learner.pure.plan.program.inputs[0].aval
        return Credit(self.learner.pure, x.shape, x.dtype)

    def init(self, key: jax.Array, params: Any = None) -> AgentState:
        """The state before the first step.

        Args:
            key: A key of `jax.random`.
            params: The parameters; None for those of the learner.
        """
        _, params, _ = at_start(self.learner, params, None, "An agent")
        params = jax.tree.map(jnp.asarray, params)
        first, onward = jax.random.split(key)
        observation, environment = self.environment.reset(first, self.env_params)
        observed = Moments.of(self.credit.shape, jnp.result_type(float)).seen(self._shaped(observation))
        zeros = jax.tree.map(jnp.zeros_like, params)
        return AgentState(
            params,
            self._update.init(params),
            self._begin(),
            Eligibility(zeros, zeros),
            environment,
            self._input(observation, observed),
            observed,
            Returns.none(jnp.result_type(float)),
            onward,
        )

    def run(self, state: AgentState, steps: int) -> tuple[AgentState, AgentStep]:
        """Acts and learns for some steps, as one loop that is compiled once.

        Args:
            state: From `init`, or from the steps before.
            steps: How many.

        Returns:
            The state after them, and what was seen of each. Both can be mapped over seeds by `jax.vmap`.
        """
        return self._loop(state, steps)

    @functools.cached_property
    def _loop(self) -> Callable[[AgentState, int], tuple[AgentState, AgentStep]]:
        loop = lambda state, steps: jax.lax.scan(lambda before, _: self.step(before), state, None, steps)
        return jax.jit(loop, static_argnums=1)

    def step(self, state: AgentState) -> tuple[AgentState, AgentStep]:
        """Acts once, and learns from what follows."""
        onward, choice, surroundings = jax.random.split(state.key, 3)
        (logits, value), pullback, memory = self.respond(state.params, state.memory, state.x)
        action = jax.random.categorical(choice, logits)
        found = moved(self.environment.step(surroundings, state.environment, action, self.env_params))
        ended = found.terminated | found.truncated
        observed = state.observed.seen(self._shaped(found.observation))
        reward, returns = self._scaled(state.returns, found.reward, ended)
        _, later = self._evaluated(state.params, memory.state, self._input(found.final, observed))
        delta = reward + self.discount * jnp.where(found.terminated, 0.0, later) - value

        by_logits = jax.grad(self._preference)(logits, action, jnp.sign(delta))
        gradients = Eligibility(
            pullback((by_logits, jnp.zeros_like(value)))[0], pullback((jnp.zeros_like(logits), jnp.ones_like(value)))[0]
        )
        fade = self.discount * self.decay
        eligibility = jax.tree.map(lambda z, g: fade * z + g, state.eligibility, gradients)
        params, opt_state = self._update.update(state.params, state.opt_state, delta, eligibility)

        fresh = (self._begin(), jax.tree.map(jnp.zeros_like, eligibility))
        memory, eligibility = jax.tree.map(lambda a, b: jnp.where(ended, a, b), fresh, (memory, eligibility))
        x = self._input(found.observation, observed)
        after = AgentState(params, opt_state, memory, eligibility, found.state, x, observed, returns, onward)
        after = jax.tree.map(_like, after, state)
        return after, AgentStep(action, found.reward, found.terminated, found.truncated, delta)

    def respond(self, params: Any, memory: Memory, x: jax.Array) -> tuple[tuple[Any, Any], Callable[..., Any], Memory]:
        """Logits and value for an observation, with the function from their cotangents to the rule's gradient.

        Args:
            params: The parameters.
            memory: What is kept of the episode.
            x: The observation, as the network takes it.

        Returns:
            Logits and value; the pullback, which gives a tuple of one gradient; what is kept after the step.
        """

        def forward(params: Any) -> tuple[tuple[Any, Any], Memory]:
            after, out = self.credit.step(params, memory, x)
            return self._split(out), after

        return jax.vjp(forward, params, has_aux=True)

    def _begin(self) -> Memory:
        return self.credit.init(self.learner.pure.init(self.learner.carry.state))

    @functools.cached_property
    def _update(self) -> Any:
        return self.optimizer if isinstance(self.optimizer, ObGD) else Ascent(self.optimizer, self.critic_weight)

    def _evaluated(self, params: Any, state: Any, x: jax.Array) -> tuple[Any, Any]:
        """Logits and value after one step more, without a trace."""
        _, out = self.learner.pure.run(params, state, x[None])
        return self._split(jax.tree.map(lambda a: a[0], out))

    def _preference(self, logits: Any, action: Any, sign: Any) -> Any:
        """The logarithm of the policy, and its entropy with a sign that `delta` in the update takes away again."""
        log_policy = jax.nn.log_softmax(logits)
        return log_policy[action] - self.entropy * sign * jnp.sum(jnp.exp(log_policy) * log_policy)

    def _scaled(self, returns: Returns, reward: Any, ended: Any) -> tuple[Any, Returns]:
        return returns.scaled(reward, ended, self.discount) if self.scale_rewards else (reward, returns)

    def _shaped(self, observation: Any) -> jax.Array:
        return jnp.asarray(observation, jnp.result_type(float)).reshape(self.credit.shape)

    def _input(self, observation: Any, observed: Moments) -> jax.Array:
        value = self._shaped(observation)
        value = (value - observed.mean) / observed.deviation if self.normalise else value
        return value.astype(self.credit.dtype)

    def _split(self, out: Any) -> tuple[Any, Any]:
        if self.heads is not None:
            return self.heads(out)
        flat = jnp.ravel(take_readout(out))
        return flat[: self.environment.num_actions], flat[self.environment.num_actions]

    def _check_sizes(self) -> None:
        """Refuses a network that does not fit the environment."""
        learner, actions = self.learner.pure, self.environment.num_actions
        if len(learner.plan.program.inputs) != 1:
            raise ValueError(
                f"An agent gives its network one input; this one takes {len(learner.plan.program.inputs)}."
            )
        seen, _ = jax.eval_shape(lambda key: self.environment.reset(key, self.env_params), jax.random.key(0))
        wanted, size = math.prod(self.credit.shape), math.prod(getattr(seen, "shape", ()))
        if size != wanted:
            raise ValueError(
                f"An observation has {size} numbers, and the network takes {wanted}: compile it for {size}."
            )
        x = jnp.zeros(self.credit.shape, self.credit.dtype)
        out = jax.eval_shape(lambda: learner.run(self.learner.params, self.learner.carry.state, x[None])[1])
        found = jax.tree.leaves(take_readout(out))
        if self.heads is None and (len(found) != 1 or found[0].size != actions + 1):
            raise ValueError(
                f"The network gives {sum(leaf.size for leaf in found)} numbers; an agent needs {actions + 1}: a logit "
                f"for each of {actions} actions, then the value. Or say by `heads` which is which."
            )


def _like(new: Any, old: Any) -> Any:
    """A value with the dtype that a loop began with."""
    return jnp.asarray(new).astype(old.dtype)
