"""Which versions of JAX the tests have seen.

The oldest one is the lower bound in `pyproject.toml`; a test compares the two, and both with the matrix of public CI.
"""

import re
import warnings

import jax

OLDEST_JAX = (0, 10, 2)
NEWEST_JAX = (0, 12)


class UntestedVersionWarning(UserWarning):
    """A library is newer than what the tests have seen."""


def check_jax(found: str | None = None) -> None:
    """Refuses a JAX that is too old, and warns of one that is newer than what was tested.

    Args:
        found: Its version, by default that of the one that is installed.

    Raises:
        ImportError: It is older than the oldest supported one.
    """
    found = found or jax.__version__
    numbers = tuple(int(part) for part in re.findall(r"\d+", found)[:3])
    if numbers < OLDEST_JAX:
        raise ImportError(
            f"Foretrace needs JAX {_dotted(OLDEST_JAX)} or later, but {found} is installed. "
            "Upgrade it: pip install --upgrade jax jaxlib"
        )
    if numbers[: len(NEWEST_JAX)] > NEWEST_JAX:
        warnings.warn(
            f"JAX {found} is newer than {_dotted(NEWEST_JAX)}, the newest that this version of Foretrace was tested "
            "with. If something breaks, upgrade Foretrace, or install an older one: "
            f"pip install 'jax<{NEWEST_JAX[0]}.{NEWEST_JAX[1] + 1}'",
            UntestedVersionWarning,
            stacklevel=2,
        )


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


check_jax()
