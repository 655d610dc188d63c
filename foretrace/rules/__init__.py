"""Learning rules, one per file on one small contract (`foretrace.rules.rule`)."""

from foretrace.rules.bptt import BPTT
from foretrace.rules.config import ETraceConfig
from foretrace.rules.d_rtrl import D_RTRL
from foretrace.rules.dni import DNI, SyntheticGradient
from foretrace.rules.eprop import EProp
from foretrace.rules.helpers import FixedRandomFeedback
from foretrace.rules.hybrid import Hybrid
from foretrace.rules.low_rank import LowRank
from foretrace.rules.ostl import OSTLFeedforward, OSTLRecurrent
from foretrace.rules.osttp import OSTTP
from foretrace.rules.otpe import OTPE
from foretrace.rules.ottt import OTTT
from foretrace.rules.pp_prop import pp_prop
from foretrace.rules.registry import RULES, find_rule, make_rule, register_rule
from foretrace.rules.rtrl import RTRL
from foretrace.rules.rule import Block, Rule
from foretrace.rules.snap import SnAp
from foretrace.rules.three_factor import ThreeFactor
from foretrace.rules.uoro import UORO

ES_D_RTRL = pp_prop
"""The rule `pp_prop` by its other name."""

__all__ = [
    "BPTT",
    "DNI",
    "D_RTRL",
    "ES_D_RTRL",
    "OSTTP",
    "OTPE",
    "OTTT",
    "RTRL",
    "RULES",
    "UORO",
    "Block",
    "EProp",
    "ETraceConfig",
    "FixedRandomFeedback",
    "Hybrid",
    "LowRank",
    "OSTLFeedforward",
    "OSTLRecurrent",
    "Rule",
    "SnAp",
    "SyntheticGradient",
    "ThreeFactor",
    "find_rule",
    "make_rule",
    "pp_prop",
    "register_rule",
]
