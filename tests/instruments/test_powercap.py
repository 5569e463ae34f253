from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from joulelab.instruments.rapl.powercap import modulus_j, zones


def test_modulus_of_ranges_that_kernels_show():
    assert modulus_j(None) is None
    assert modulus_j(0) is None
    assert modulus_j(-1) is None
    # The default Intel unit, 1/2^14 J, which the kernel rounds to 61.035 uJ.
    assert modulus_j(262_143_328_850) == (262_143_328_850 + 262_143_328_850 / (2**32 - 1)) / 1e6
    assert round(modulus_j(65_532_610_987) * 1e6 - 65_532_610_987) == 15


@given(st.integers(1, 2**60))
def test_modulus_is_beyond_the_largest_value(largest_uj):
    assert modulus_j(largest_uj) * 1e6 > largest_uj


def test_nothing_to_list(tmp_path):
    assert zones(tmp_path / "none") == []
    (tmp_path / "intel-rapl:0").mkdir()  # no name: not a zone
    (tmp_path / "dtpm").mkdir()
    (tmp_path / "intel-rapl").mkdir()
    assert zones(tmp_path) == []


def test_zones_of_newer_kernels_keep_their_names(tmp_path):
    for directory, name in {"intel-rapl:0": "package-3", "intel-rapl:0:0": "uncore", "intel-rapl:0:1": "novel"}.items():
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "name").write_text(name)
    found = zones(tmp_path)
    assert [(z.kind, z.package, z.die, z.modulus_j) for z in found] == [
        ("package", 3, None, None),
        ("uncore", 3, None, None),
        ("novel", 3, None, None),
    ]
