"""Japanese vowels: who of nine speakers said it? (Kudo, Toyama & Shimbo 1999.)"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from foretrace.tasks import shipped
from foretrace.tasks.stored import Parts, Stored
from foretrace.tasks.task import Span


@dataclass(frozen=True, kw_only=True)
class JapaneseVowels(Stored):
    """Utterances of two vowels by nine speakers, 7 to 29 steps of 12 cepstral coefficients, that ship with sktime.

    The parts are the published ones: 270 utterances to train on, 370 held out. A trial has 29 steps; those after the
    end of the utterance are zero and do not count.

    Attributes:
        counted: How many of the last steps of an utterance count; all of them for None.
        dt: Milliseconds per step.

    Examples:
        >>> task = JapaneseVowels()
        >>> task.n_steps, task.n_inputs, task.n_outputs
        (29, 12, 9)
    """

    name = "vowels"
    drawn_as = "lines"

    @property
    def n_steps(self) -> int:
        return shipped.LONGEST

    @property
    def n_inputs(self) -> int:
        return shipped.COEFFICIENTS

    @property
    def n_outputs(self) -> int:
        return shipped.SPEAKERS

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(f"speaker {number}" for number in range(1, shipped.SPEAKERS + 1))

    @property
    def populations(self) -> tuple[Span, ...]:
        return tuple((f"cepstrum {place + 1}", place, place + 1) for place in range(shipped.COEFFICIENTS))

    def load(self) -> Parts:
        return shipped.read_vowels()

    def encode(self, values: jax.Array) -> jax.Array:
        return jnp.asarray(values, float)
