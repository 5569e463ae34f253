from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rows import every_row

from joulelab.core.errors import ConfigError
from joulelab.twin import profile
from joulelab.twin.profile import Profile

levels = st.floats(0, 700)
lengths = st.floats(0.05, 5)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    made = draw(
        st.one_of(
            st.builds(profile.constant, levels),
            st.builds(profile.square, lengths, st.floats(0.05, 0.95), levels, levels),
            st.builds(profile.ramp, lengths, levels, levels),
            st.builds(profile.burst, lengths, lengths, levels, levels),
            st.builds(profile.steps, lengths, st.lists(levels, min_size=1, max_size=5)),
        )
    )
    return made.shift_by(draw(st.floats(-3, 3)))


def area(made: Profile, a: float, b: float) -> float:
    at, start, end = made.list_pieces(a, b)
    return float(np.sum((start + end) / 2 * np.diff(np.append(at, b))))


@given(profiles(), st.floats(0, 5), st.floats(0.01, 5), st.floats(0.01, 5))
def test_the_whole_is_the_sum_of_its_parts(made: Profile, a: float, first: float, second: float) -> None:
    b, c = a + first, a + first + second
    assert area(made, a, c) == pytest.approx(area(made, a, b) + area(made, b, c), abs=1e-6)
    assert made.list_pieces(a, c)[0][0] == a


def test_shapes() -> None:
    assert area(profile.constant(100), 0, 10) == pytest.approx(1000)
    assert area(profile.square(0.35, 0.3, 100, 600), 0, 3.5) == pytest.approx(10 * 0.35 * (0.3 * 600 + 0.7 * 100))
    assert area(profile.ramp(10, 0, 1), 0, 12) == pytest.approx(7)
    assert area(profile.burst(2, 1.5, 70, 700), 0, 10) == pytest.approx(700 + 1.5 * 630)
    assert area(profile.steps(1, [1, 2, 3]), 0, 4) == pytest.approx(9)
    assert area(profile.from_arrays([5, 6, 8], [0, 10, 20]), 0, 4) == pytest.approx(5 + 30 + 20)
    assert area(profile.square(1, 0.5, 0, 1).shift_by(0.25), 0, 0.25) == pytest.approx(0)


@every_row(
    ("text", "says"),
    [
        ("squre:period_s=1", "did you mean 'square'"),
        ("square:perod_s=1", "did you mean 'period_s'"),
        ("square:period_s=fast", "not a number"),
        ("square", "period_s"),
        ("square:period_s=1,duty=2", "not between 0 and 1"),
        ("constant:level=1,unit=kW", "use load or W"),
        ("constant:level=-1", "never negative"),
        ("ramp:over_s=-3", "never fall"),
        ("constant:level=nan", "finite"),
    ],
)
def test_wrong_text_is_explained(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        profile.parse_profile(text)


def test_text_is_read() -> None:
    assert profile.parse_profile("square:period_s=0.35,duty=0.3,low=100,high=600,unit=W,shift_s=0.1") == profile.square(
        0.35, 0.3, 100, 600, unit="W"
    ).shift_by(0.1)
    assert profile.parse_profile("steps:each_s=2,levels=0/0.5/1") == profile.steps(2, [0, 0.5, 1])


def test_wrong_pieces_are_refused() -> None:
    for at, start, end in [((0.0,), (1.0,), (2.0,)), ((1.0,), (1.0,), (1.0,)), ((0.0, 1.0), (1.0,), (1.0,))]:
        with pytest.raises(ConfigError):
            Profile(at, start, end)
    with pytest.raises(ConfigError):
        profile.Profile((0.0, 2.0), (1.0, 2.0), (1.0, 2.0), period_s=1.0)
