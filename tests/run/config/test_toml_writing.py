"""An entry is written into a file that keeps all else; what cannot be done safely is refused."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rows import every_row

from joulelab.core.errors import ConfigError
from joulelab.run.config import toml_writing
from joulelab.run.config.toml_writing import format_entry, format_toml, write_entry

if TYPE_CHECKING:
    from pathlib import Path

BEFORE = (
    '# mine\n[meters.a]  # first\nmeter = "rapl"\n\n# about b\n[meters.b]\nmeter = "host"\n\n[run]\nidle_s = 1 # keep'
)
VALUES = {"meter": "snmp", "address": "10.0.0.5", "outlets": [1, 2], "password": {"env": "PW"}, "tls": False}


def test_an_entry_is_appended(tmp_path: Path) -> None:
    file = tmp_path / "new" / "joulelab.toml"
    write_entry(file, "pdu1", VALUES)
    write_entry(file, "pdu2", VALUES)
    assert tomllib.loads(file.read_text()) == {"meters": {"pdu1": VALUES, "pdu2": VALUES}}
    assert not list(file.parent.glob(".joulelab*"))


def test_the_rest_of_a_file_stays_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "joulelab.toml"
    file.write_text(BEFORE)
    file.chmod(0o640)
    link = tmp_path / "link.toml"
    link.symlink_to(file)
    write_entry(link, "pdu1", VALUES)
    assert file.read_text() == BEFORE + "\n\n" + format_entry("pdu1", VALUES)
    assert file.stat().st_mode & 0o777 == 0o640
    assert link.is_symlink()


def test_an_entry_is_replaced_only_on_request(tmp_path: Path) -> None:
    file = tmp_path / "joulelab.toml"
    file.write_text(BEFORE)
    with pytest.raises(ConfigError, match="already"):
        write_entry(file, "a", VALUES)
    assert file.read_text() == BEFORE
    write_entry(file, "a", VALUES, replace=True)
    changed = file.read_text()
    assert changed == BEFORE.replace(
        '# first\nmeter = "rapl"\n', "# first\n" + format_entry("a", VALUES).partition("\n")[2]
    )
    write_entry(file, "b", VALUES, replace=True)
    assert tomllib.loads(file.read_text())["meters"] == {"a": VALUES, "b": VALUES}
    assert "# about b\n[meters.b]" in file.read_text()
    assert "idle_s = 1 # keep" in file.read_text()


@every_row(
    "text",
    [
        'meters = { a = { meter = "rapl" } }\n',
        'meters = { b = { meter = "rapl" } }\n',
        '[meters]\na.meter = "rapl"\n',
        "[meters.a.b]\nc = 1\n",
        '[meters.c]\nmeter = """\n[meters.a]\n"""\n[meters.a]\nmeter = "x"\n',
    ],
)
def test_an_entry_is_found_in_every_way_of_writing(tmp_path: Path, text: str) -> None:
    file = tmp_path / "joulelab.toml"
    file.write_text(text)
    write_entry(file, "a", VALUES, replace=True)
    before, after = tomllib.loads(text)["meters"], tomllib.loads(file.read_text())["meters"]
    assert after == {**before, "a": VALUES}


def test_comments_stay_where_keys_change(tmp_path: Path) -> None:
    file = tmp_path / "joulelab.toml"
    file.write_text('[meters.a]\n# why\nmeter = "rapl"  # so\nold = 1\n# about b\n[meters.b]\n')
    write_entry(file, "a", {"meter": "rapl", "new": 2}, replace=True)
    assert file.read_text() == '[meters.a]\n# why\nmeter = "rapl"  # so\nnew = 2\n# about b\n[meters.b]\n'


@pytest.mark.parametrize("raised", [ValueError, KeyError, TypeError])
def test_what_cannot_be_changed_safely_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: type[Exception]
) -> None:
    def fail(*_: object) -> None:
        raise raised

    monkeypatch.setattr(toml_writing, "_set_entry", fail)
    file = tmp_path / "joulelab.toml"
    file.write_text(BEFORE)
    with pytest.raises(ConfigError, match=r"cannot be changed safely.*\n\[meters.a\]"):
        write_entry(file, "a", VALUES, replace=True)
    assert file.read_text() == BEFORE


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_entry(tmp_path / "file" / "joulelab.toml", "a", VALUES)


plain = st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | st.text()
nested = st.recursive(plain, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)


@given(nested)
def test_what_is_written_is_read_back(value: Any) -> None:
    try:
        text = format_toml(value)
        text.encode()
    except UnicodeEncodeError:
        return  # a lone surrogate is no text
    assert tomllib.loads(f"x = {text}")["x"] == value
