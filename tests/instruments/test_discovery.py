from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.rows import every_row

from joulelab import instruments as meters
from joulelab.core.errors import ConfigError, Unavailable

GOOD = """
from joulelab.core.spec import Spec, Stream
SUMMARY = "an outside meter"
class Meter:
    def streams(self): return [Stream("a", "a", "rack", 1.0, (Spec("power_w", "power", "W", "power"),))]
    def read(self, stream): return (1.0,)
    def close(self): pass
def open_meter(config):
    if config.get("fail"): raise ZeroDivisionError("inside")
    return Meter()
"""


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """Install a package with entry points, as pip would."""

    def install(name: str, source: str, target: str | None = None) -> None:
        module = f"outside_{name}_{tmp_path.name}".replace("-", "_")
        (tmp_path / f"{module}.py").write_text(source)
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[joulelab.meters]\n{name} = {target or module}\n")

    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield install
    for name in set(sys.modules) - before:
        if name.startswith("outside_"):
            del sys.modules[name]


def test_modules_of_the_package_are_meters_by_their_name():
    found = meters.list_meters()
    folder = Path(meters.__file__).parent
    assert {"nvml", "rapl", "amdsmi", "host", "estimate"} <= set(found)
    assert not {"catalog", "hooks", "settings", "generations", "visible"} & set(found)
    assert all((folder / f"{name}.py").exists() or (folder / name / "__init__.py").exists() for name in found)
    assert "estimate" not in meters.list_defaults()
    assert "host" in meters.list_defaults()


@every_row("name", ["nvlm", "settings", "../host", "host.x", ""])
def test_a_wrong_name_names_the_nearest(name):
    with pytest.raises(ConfigError, match="valid: "):
        meters.find_meter(name)
    with pytest.raises(ConfigError, match="did you mean 'nvml'"):
        meters.find_meter("nvlm")


def test_outside_packages_are_found(outside):
    outside("wallplug", GOOD)
    assert "wallplug" in meters.list_meters()
    assert "wallplug" in meters.list_defaults()
    assert meters.find_meter("wallplug").SUMMARY == "an outside meter"
    meter = meters.open_meter("wallplug", {})
    assert meter.read(meter.streams()[0]) == (1.0,)


@pytest.mark.parametrize(
    "source", ["import a_library_that_is_missing", "x = 1", "raise SystemError('broken')", "def ("]
)
def test_a_broken_outside_package_is_a_typed_error(outside, source):
    outside("broken", source)
    assert "broken" in meters.list_meters()
    assert "broken" in meters.list_defaults()
    with pytest.raises(Unavailable) as error:
        meters.find_meter("broken")
    assert error.value.where == "meter broken"
    assert error.value.why
    assert error.value.next


def test_what_an_outside_meter_raises_is_typed(outside):
    outside("failing", GOOD)
    with pytest.raises(Unavailable, match="ZeroDivisionError: inside"):
        meters.open_meter("failing", {"fail": True})


def test_a_missing_target_is_a_typed_error(outside):
    outside("nowhere", "", target="there_is_no_such_module")
    with pytest.raises(Unavailable, match="ModuleNotFoundError"):
        meters.open_meter("nowhere", {})


@pytest.mark.system
def test_the_usual_meters_are_found_without_loading_the_others():
    import subprocess
    import sys

    code = (
        "import sys, joulelab.instruments as m; m.list_meters(); m.list_defaults();"
        "print('joulelab.instruments.snmp' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
