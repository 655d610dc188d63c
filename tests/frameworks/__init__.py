"""A table of models as people write them in Flax, Equinox and spyx, each compiled by the natural call."""

from .equinox_models import equinox_models
from .linen_models import linen_models
from .nnx_models import nnx_models
from .records import Entry, natural
from .spyx_models import spyx_models

ENTRIES: tuple[Entry, ...] = (*nnx_models, *spyx_models, *linen_models, *equinox_models)

__all__ = ["ENTRIES", "Entry", "natural"]
