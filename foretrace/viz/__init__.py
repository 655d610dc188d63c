"""Pictures of learning: curves, rasters, eligibility traces, agreement of gradients, memory.

Every function takes plain data, draws without a window, and returns a matplotlib figure; with `path=` it writes a file
whose ending says the format, with `axes=` it draws into axes of yours. All pictures have one look and read in grey.
"""

from foretrace.viz.agreement import gradient_agreement
from foretrace.viz.curves import learning_curves
from foretrace.viz.eligibility import eligibility_traces
from foretrace.viz.memory import memory_against_length
from foretrace.viz.raster import spike_raster
from foretrace.viz.recording import record_traces

__all__ = [
    "eligibility_traces",
    "gradient_agreement",
    "learning_curves",
    "memory_against_length",
    "record_traces",
    "spike_raster",
]
