"""In a notebook a picture shows itself, once, without pyplot and without a window."""

import io
import subprocess
import sys

from matplotlib.figure import Figure
from matplotlib.image import imread

from foretrace.viz import memory_against_length

TABLE = {"D_RTRL": {100: 1e6, 1000: 1e6}, "BPTT": {100: 1e6, 1000: 1e7}}
SHOWS = """
import sys
from foretrace.viz import memory_against_length
data, _ = memory_against_length({"BPTT": {100: 1e6, 1000: 1e7}})._repr_png_()
assert data.startswith(bytes([137]) + b"PNG")
assert "matplotlib.pyplot" not in sys.modules
"""


def test_a_picture_shows_itself_as_png() -> None:
    drawn = memory_against_length(TABLE)
    data, size = drawn._repr_png_()
    height, width, _ = imread(io.BytesIO(data), format="png").shape
    assert isinstance(drawn, Figure)
    assert width > size["width"] > 100
    assert abs(width / height - size["width"] / size["height"]) < 0.02


def test_it_looks_as_the_file_does(tmp_path) -> None:
    memory_against_length(TABLE, path=tmp_path / "memory.png")
    drawn = memory_against_length(TABLE)  # nothing has laid it out yet
    assert (imread(tmp_path / "memory.png") == imread(io.BytesIO(drawn._repr_png_()[0]), format="png")).all()


def test_pyplot_does_not_know_it() -> None:
    subprocess.run([sys.executable, "-c", SHOWS], check=True)
