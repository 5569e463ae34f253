"""`joulelab site` writes [site] once, shows it with source and year, and refuses what a run could not use."""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING

import pytest

from joulelab.run.config.config_files import get_user_file

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Call, Fail


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the user's configuration file of the test."""
    monkeypatch.delenv("JOULELAB_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("JOULELAB_ETC", str(tmp_path / "etc"))
    return get_user_file({"XDG_CONFIG_HOME": str(tmp_path / "config")})


def read_values(file: Path) -> dict[str, object]:
    values: dict[str, object] = tomllib.loads(file.read_text())["site"]
    return values


def test_without_a_site_the_command_to_set_one_is_shown(call: Call, file: Path) -> None:
    assert "joulelab site --zone DE --price 0.30EUR" in call("site").output
    assert json.loads(call("site", "--json").output) == {"site": None, "values": {}, "files": [], "figures": []}
    assert not file.exists()


def test_a_site_is_written_once_and_shown_with_source_and_year(call: Call, file: Path) -> None:
    text = call("site", "--zone", "Germany", "--price", "0.30EUR", "--pue", "1.2").output
    assert read_values(file) == {"zone": "Germany", "price": "0.30EUR", "pue": 1.2}
    assert max(len(line) for line in text.splitlines() if str(file) not in line) <= 80
    assert call("site").output == text
    for part in ("Germany 2023, 381 g/kWh", "Our World in Data", "0.36 EUR and 0.4572 kg CO2e", "380.95", str(file)):
        assert part in " ".join(text.split())
    found = json.loads(call("site", "--json").output)
    assert (found["site"]["g_per_kwh"], found["site"]["year"], found["files"]) == (381, 2023, [str(file)])
    assert {row["covers"] for row in found["figures"]} == {"lifecycle", "direct"}


def test_options_that_are_not_given_keep_their_values(call: Call, file: Path) -> None:
    call("site", "--zone", "DE", "--price", "0.30EUR")
    call("site", "--pue", "1.1", "--year", "2024")
    assert read_values(file) == {"zone": "DE", "year": 2024, "price": "0.30EUR", "pue": 1.1}
    call("site", "--zone", "FR")  # another place: the year was that of Germany
    assert read_values(file) == {"zone": "FR", "price": "0.30EUR", "pue": 1.1}
    call("site", "--intensity", "45", "--source", "our supplier", "--year", "2025")
    assert read_values(file) == {
        "year": 2025, "intensity": 45, "source": "our supplier", "price": "0.30EUR", "pue": 1.1,
    }  # fmt: skip
    assert "our supplier" in call("site").output


def test_the_rest_of_the_file_stays(call: Call, file: Path) -> None:
    file.parent.mkdir(parents=True)
    before = '# mine\n[run]\nidle_s = 1 # keep\n\n[site] # here\nzone = "FR" # for now\n\n# about the node\n[node]\n'
    file.write_text(before)
    call("site", "--zone", "DE", "--pue", "1.2")
    changed = before.replace('"FR" # for now\n', '"DE" # for now\npue = 1.2\n')
    assert file.read_text() == changed
    call("site", "--remove")
    assert file.read_text() == "# mine\n[run]\nidle_s = 1 # keep\n\n# about the node\n[node]\n"


def test_a_stronger_file_is_named(call: Call, fail: Fail, file: Path, tmp_path: Path) -> None:
    project = tmp_path / "joulelab.toml"
    call("site", "--zone", "FR", "--file", project)
    found = call("site", "--zone", "DE", "--price", "0.30EUR")
    assert f"{project} has a [site], too, and wins over {file}" in found.stderr
    assert "France 2023" in found.stdout
    assert "0.3 EUR/kWh" in found.stdout  # the project has no price
    call("site", "--remove")
    refused = fail("site", "--remove")
    assert (refused.code, str(project) in (refused.next or "")) == ("config.no-site", True)
    call("site", "--system", "--pue", "1.5")
    assert (tmp_path / "etc" / "joulelab.toml").exists()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--zone", "Germny"), "config.unknown-zone"),
        (("--zone", "DE", "--year", "1995"), "config.no-such-intensity"),
        (("--zone", "DE", "--covers", "all"), "config.wrong-value"),
        (("--price", "0.30"), "config.no-price"),
        (("--pue", "0.9"), "config.wrong-value"),
        (("--pue", "nan"), "config.wrong-value"),
        (("--intensity", "380"), "config.no-source"),
        (("--intensity", "-5", "--source", "x", "--year", "2025"), "config.wrong-value"),
        (("--source", "x"), "config.no-zone"),
        (("--list", "nowhere"), "config.unknown-zone"),
        (("--remove",), "config.no-site"),
        (("DE",), "usage.needs-list"),
        (("--list", "--zone", "DE"), "usage.exclusive"),
        (("--system",), "usage.needs-values"),
        (("--zone", "DE", "--system", "--file", "x.toml"), "usage.exclusive"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_written(fail: Fail, file: Path, words: tuple[str, ...], code: str) -> None:
    assert fail("site", *words).code == code
    assert not file.exists()


def test_a_wrong_file_is_reported_with_its_line(call: Call, file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_text('[site]\nzone = "DE"\npue = 0.5\n')
    found = call("site", code=2)
    assert f"{file}:3: pue is 0.5" in found.stderr
    assert "No site is set" in found.stdout


def test_zones_are_listed_with_both_tables(call: Call, file: Path) -> None:
    lines = call("site", "--list", "united").output.splitlines()
    assert [line.split()[0] for line in lines[2:8]] == ["AE", "GB", "US", "US", "US", "VI"]
    assert lines[4].endswith("*")
    assert len(json.loads(call("site", "--list", "--json").output)) > 213
    assert max(map(len, call("site", "--list").output.splitlines())) <= 80
    assert not file.exists()
