"""Learning rules, one per file on one small contract (`foretrace.engine.rule`)."""

from foretrace.algorithms.d_rtrl import DRTRL

__all__ = ["DRTRL"]
