"""Learning rules, one per file on one small contract (`foretrace.engine.rule`)."""

from foretrace.algorithms.config import ETraceConfig
from foretrace.algorithms.d_rtrl import DRTRL
from foretrace.algorithms.dni import DNI, SyntheticGradient
from foretrace.algorithms.eprop import EProp
from foretrace.algorithms.helpers import FixedRandomFeedback
from foretrace.algorithms.hybrid import Hybrid
from foretrace.algorithms.ostl import OSTLFeedforward, OSTLRecurrent
from foretrace.algorithms.osttp import OSTTP
from foretrace.algorithms.otpe import OTPE
from foretrace.algorithms.ottt import OTTT
from foretrace.algorithms.pp_prop import PPProp
from foretrace.algorithms.rtrl import RTRL
from foretrace.algorithms.snap import SnAp
from foretrace.algorithms.three_factor import ThreeFactor
from foretrace.algorithms.uoro import UORO

__all__ = [
    "DNI",
    "DRTRL",
    "OSTTP",
    "OTPE",
    "OTTT",
    "RTRL",
    "UORO",
    "EProp",
    "ETraceConfig",
    "FixedRandomFeedback",
    "Hybrid",
    "OSTLFeedforward",
    "OSTLRecurrent",
    "PPProp",
    "SnAp",
    "SyntheticGradient",
    "ThreeFactor",
]
