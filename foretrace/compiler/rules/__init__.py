"""Rules of local structure, one file per primitive family; importing this package registers them all."""

from foretrace.compiler.rules import elementwise, indexing, linear, loops, nested, reductions, structural

__all__ = ["elementwise", "indexing", "linear", "loops", "nested", "reductions", "structural"]
