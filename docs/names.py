"""How the reference finds public names: a function that lives in a file of its own name is the function, not the file.

Griffe reads the sources without running them, and takes `from foretrace.ops.matmul import matmul` for the file
`foretrace/ops/matmul.py`. This extension points such a name at what Python finds under it.
"""

from typing import Any

import griffe


class PublicNames(griffe.Extension):
    """Points the names that a package imports from files of the same name at the functions and classes inside."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        """Goes over the package itself and the parts that the reference shows."""
        for part in (pkg, *pkg.modules.values()):
            for name, member in list(part.members.items()):
                if member.is_alias and (found := _inside(pkg, name, member.target_path)) is not None:
                    part.members[name] = griffe.Alias(name, found, parent=part)


def _inside(pkg: griffe.Module, name: str, target: str) -> Any:
    """What a file offers under its own name to the package that it lies in; None for anything else."""
    try:
        file = pkg[target.removeprefix(f"{pkg.name}.")]
    except (KeyError, griffe.AliasResolutionError):
        return None
    if file.is_alias or not file.is_module or file.parent.imports.get(name) != f"{file.path}.{name}":
        return None
    return file.members[name]
