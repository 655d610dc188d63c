"""Pattern rules: the local structure of primitives, one file per family; importing this package registers them all."""

from foretrace.compiler.pattern_rules import elementwise, indexing, linear, loops, nested, reductions, structural

__all__ = ["elementwise", "indexing", "linear", "loops", "nested", "reductions", "structural"]
