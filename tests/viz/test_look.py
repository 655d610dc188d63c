"""One look for all pictures: colours that differ in grey, files by their ending, no window and no global state."""

import itertools
import subprocess
import sys

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from foretrace._look import DASHES, LIGHTNESS_STEP, PALETTE, STYLE, figure, series
from foretrace.viz import agreement, eligibility, memory_against_length

TABLE = {"D_RTRL": {100: 1e6, 1000: 1e6}, "BPTT": {100: 1e6, 1000: 1e7}}


def lightness(color):
    """CIE 1976 lightness of an sRGB colour, from 0 to 100."""
    channels = np.array(to_rgb(color))
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    luminance = float(linear @ [0.2126, 0.7152, 0.0722])
    return 116 * luminance ** (1 / 3) - 16 if luminance > 0.008856 else 903.3 * luminance


def test_colours_differ_in_lightness():
    steps = [abs(lightness(a) - lightness(b)) for a, b in itertools.combinations(PALETTE, 2)]
    assert min(steps) >= LIGHTNESS_STEP


def test_no_two_series_look_the_same():
    looks = [series(place) for place in range(len(PALETTE) * len(DASHES))]
    assert len(set(looks)) == len(looks)
    assert len({look.linestyle for look in looks[: len(PALETTE)]}) == len(PALETTE)


@pytest.mark.parametrize("shades", [agreement.SHADES, eligibility.SHADES])
def test_shades_of_a_map_grow_darker(shades):
    steps = np.diff([lightness(shade) for shade in shades])
    assert (steps < -LIGHTNESS_STEP).all()


@pytest.mark.parametrize(("ending", "start"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_format_follows_the_ending(tmp_path, ending, start):
    path = tmp_path / f"memory.{ending}"
    memory_against_length(TABLE, path=path)
    assert path.read_bytes().startswith(start)


def test_equal_pictures_are_equal_files(tmp_path):
    for name in ("a.svg", "b.svg"):
        memory_against_length(TABLE, path=tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_unknown_ending_is_refused_before_anything_is_drawn(tmp_path):
    with (
        pytest.raises(ValueError, match=r"memory\.docx.*\.svg, \.png or \.pdf"),
        figure("A", (1, 1), tmp_path / "memory.docx"),
    ):
        raise AssertionError("nothing is drawn")


def test_missing_matplotlib_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"Drawing memory against length needs matplotlib.*foretrace\[viz\]"):
        memory_against_length(TABLE)


def test_settings_of_matplotlib_stay_as_they_were():
    before = {key: matplotlib.rcParams[key] for key in STYLE}
    memory_against_length(TABLE)
    assert {key: matplotlib.rcParams[key] for key in STYLE} == before


def test_pyplot_and_its_windows_are_never_loaded():
    code = (
        f"import sys, foretrace.viz as v; v.memory_against_length({TABLE}); print('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"


def test_axes_of_the_user_are_drawn_in(tmp_path):
    from matplotlib.figure import Figure

    own = Figure()
    left, _ = own.subplots(1, 2)
    assert memory_against_length(TABLE, axes=left, path=tmp_path / "own.svg") is own
    assert len(left.lines) == len(TABLE)
    assert (tmp_path / "own.svg").exists()


def test_axes_that_are_none_are_refused():
    with pytest.raises(TypeError, match="axes of matplotlib"):
        memory_against_length(TABLE, axes=3)


def test_a_wrong_number_of_axes_is_refused():
    from matplotlib.figure import Figure

    with pytest.raises(ValueError, match=r"takes 1 axes, .*has 2"):
        memory_against_length(TABLE, axes=Figure().subplots(1, 2))
