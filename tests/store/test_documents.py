from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.rows import every_row

from joulelab.core.errors import StoreError
from joulelab.store import documents
from joulelab.store.documents import MOST_DEPTH, MOST_DIGITS, decode_json, read_document, read_json, read_lines
from joulelab.store.safe_files import read_regular
from joulelab.store.upgrade import upgrade_document

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

READERS = [read_json, lambda path: read_document(str(path))]
RUN = {"schema": 1, "id": "a", "host": "h", "command": ["x"], "labels": {}, "started": {"mono_ns": 1, "utc_ns": 2}}
END = {"schema": 1, "exit_code": 0, "start_ns": 1, "end_ns": 2, "ended": {"mono_ns": 1, "utc_ns": 2}}


def nest(levels: int) -> str:
    return '{"a": ' + "[" * (levels - 1) + "]" * (levels - 1) + "}"


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("levels", [MOST_DEPTH + 1, 900, 100_000])
def test_deep_documents_are_refused(tmp_path: Path, read: Callable[[Path], object], levels: int) -> None:
    path = tmp_path / "a.json"
    path.write_text(nest(levels))
    with pytest.raises(StoreError, match=r"a.json is damaged \(nested too deeply\)"):
        read(path)
    path.write_text(nest(MOST_DEPTH))
    read(path)


@pytest.mark.parametrize("read", READERS)
def test_brackets_in_texts_are_not_depth(tmp_path: Path, read: Callable[[Path], object]) -> None:
    path = tmp_path / "a.json"
    for text in ("[" * 500, "]" * 500, "[}" * 500, "{[" * 500):
        path.write_text(json.dumps({"command": text}))
        assert read(path) == {"command": text}


@pytest.mark.parametrize("read", READERS)
def test_long_numbers_are_refused(tmp_path: Path, read: Callable[[Path], object]) -> None:
    path = tmp_path / "a.json"
    path.write_text(f'{{"a": {"9" * (MOST_DIGITS + 1)}}}')
    with pytest.raises(StoreError, match=f"a number has {MOST_DIGITS + 1} digits"):
        read(path)
    path.write_text(json.dumps({"a": "9" * 5000}))
    assert read(path) == {"a": "9" * 5000}


def test_large_files_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with path.open("wb") as file:
        file.truncate(documents.LARGEST_DOCUMENT + 1)
    with pytest.raises(StoreError, match="it is larger than 64 MB"):
        read_json(path)
    with pytest.raises(OSError, match="larger than 0 MB"):
        read_regular(path, 10)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[1"])
def test_other_defects_are_named(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"not JSON|not text"):
        decode_json(text)


GOOD = '{"t": 1, "event": "a"}'


@every_row(
    "bad",
    [
        "{",
        "[]",
        '{"t": "1"}',
        '{"t": 1.5}',
        '{"t": true}',
        '{"t": 99999999999999999999}',
        '{"t": 9300000000000000000}',
        '{"t": 1, "from": 99999999999999999999}',
        '{"t": 1, "a": ' + "[" * 900 + "]" * 900 + "}",
        '{"t": 1, "a": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"t": 1, "a": ' + "9" * 5000 + "}",
    ],
)
def test_a_bad_line_costs_itself_only(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f"{GOOD}\n{bad}\n\n{GOOD}\n{GOOD}")  # the last is still being written
    assert read_lines(path) == ([json.loads(GOOD)] * 2, 1)


@pytest.mark.parametrize(
    "line", ['{"t": 1, "a": NaN}', '{"t": 1, "a": "\\udc80"}', '{"t": 1700000000000000000, "a": "["}']
)
def test_unusual_lines_are_read(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f"{GOOD}\n{line}\n")
    lines, damaged = read_lines(path)
    assert (len(lines), damaged) == (2, 0)
    assert repr(lines[1]) == repr(json.loads(line))


def test_too_many_lines_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MOST_LINES", 2)
    path = tmp_path / "a.jsonl"
    path.write_text(3 * f"{GOOD}\n")
    with pytest.raises(OSError, match="it has more than 2 lines"):
        read_lines(path)
    assert read_lines(tmp_path / "none.jsonl") == ([], 0)


@every_row(
    ("document", "change", "why"),
    [
        ("run", {"host": 7}, "host is not text"),
        ("run", {"name": ["a"]}, "name is not text"),
        ("run", {"command": "python train.py"}, "command is not a list"),
        ("run", {"command": [1]}, "command is not a list of texts"),
        ("run", {"labels": []}, "labels is not an object"),
        ("run", {"owner": 1}, "owner is not an object"),
        ("run", {"started": {"mono_ns": 10**20, "utc_ns": 1}}, "started is not a pair of times"),
        ("run", {"started": {"mono_ns": 1.5, "utc_ns": 1}}, "started is not a pair of times"),
        ("end", {"exit_code": "0"}, "exit_code is not a whole number"),
        ("end", {"exit_code": True}, "exit_code is not a whole number"),
        ("end", {"end_ns": float("nan")}, "end_ns is not a whole number"),
        ("end", {"end_ns": 2**63}, "end_ns is not a whole number"),
        ("end", {"files": [1]}, "files is not an object"),
    ],
)
def test_wrong_types_are_refused_by_name(document: str, change: dict[str, object], why: str) -> None:
    good = RUN if document == "run" else END
    assert upgrade_document(document, good, where="x") == good  # type: ignore[arg-type]
    with pytest.raises(StoreError, match=why):
        upgrade_document(document, {**good, **change}, where="x")  # type: ignore[arg-type]
