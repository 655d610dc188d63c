"""The figure that pictures are drawn in: matplotlib's, which a notebook shows without pyplot."""

import io
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from foretrace._look import DOTS, STYLE


class ShownFigure(Figure):
    """A figure of its own: no window, no part in pyplot's list of figures, shown once where it is a cell's result."""

    def _repr_png_(self) -> tuple[bytes, dict[str, Any]]:
        """The picture, and the size to show it at, which is smaller than its dots so that it is sharp."""
        file = io.BytesIO()
        with matplotlib.rc_context(STYLE):
            self.savefig(file, format="png", dpi=DOTS)
        width, height = (round(float(inches) * 100) for inches in self.get_size_inches())
        return file.getvalue(), {"width": width, "height": height}
