"""Throw damaged cells, stamps and lines at the reader of files: right numbers, nothing, or a typed error.

A number is wrong if the text, read by a second way that shares no code with the reader, does not say exactly it.
"""

from __future__ import annotations

import math
import random
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

import pytest

from joulelab.core.clock import NS
from joulelab.core.errors import JoulelabError, ReadFailed
from joulelab.instruments.file import open_archive
from joulelab.instruments.file.values import BadStamp, Clock, NotANumber, NumberReader, find_unit

if TYPE_CHECKING:
    from pathlib import Path

CELLS = ["123.4 W", "0", "-12.75", "1.25 kW", "6.02e2", "[N/A]", "[Not Supported]", "987654321.123", "5 mW", "", "N/A"]
STAMPS = ["2024-05-01T12:34:56.789Z", "2024/05/01 12:34:56.789", "2024-05-01 12:34:56+02:00", "2024-12-31 23:59:59"]
FACTORS = {"": 1.0, "W": 1.0, "kW": 1e3, "mW": 1e-3, "MW": 1e6, "uW": 1e-6, "µW": 1e-6, "w": 1.0, "kw": 1e3, "KW": 1e3}
NOTHING = {"", "-", "--", "n/a", "[n/a]", "na", "nan", "null", "none", "[not supported]", "not supported"}
ALPHABET = "0123456789.,+-eE Wkm[]N/AaZT:_%\"'\t\0\\xµ١∞"


def mutated(text: str, rng: random.Random, alphabet: str = ALPHABET) -> str:
    """Change, add, drop or double a few characters, or make noise of it."""
    if rng.random() < 0.05:
        return "".join(rng.choice(alphabet) for _ in range(rng.randint(0, 24)))
    letters = list(text)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(letters) + 1)
        match rng.randrange(4):
            case 0 if at < len(letters):
                letters[at] = rng.choice(alphabet)
            case 1:
                letters.insert(at, rng.choice(alphabet))
            case 2 if at < len(letters):
                del letters[at]
            case _:
                letters[at:at] = letters[max(0, at - 3) : at]
    return "".join(letters)


def said(text: str) -> float | None:
    """Return the number that a cell says, by Decimal and a table of units; None where it says none."""
    cell = text.strip()
    for end in range(len(cell), 0, -1):
        head, rest = cell[:end], cell[end:].strip()
        if re.search(r"[^0-9.eE+-]", head) or not re.search("[0-9]", head):
            continue
        try:
            number = float(Decimal(head))
        except (InvalidOperation, OverflowError):
            continue
        return number * FACTORS[rest] if rest in FACTORS else None
    return None


@pytest.mark.parametrize("rounds", [2_000, pytest.param(20_000, marks=pytest.mark.campaign)])
def test_damaged_cells(rounds: int) -> None:
    rng, cells = random.Random(1), NumberReader(find_unit("W") or pytest.fail("no W"))
    numbers = texts = 0
    for _ in range(rounds):
        text = mutated(rng.choice(CELLS), rng)
        try:
            value = cells.read_number(text)
        except NotANumber:
            texts += 1
            number = said(text)
            assert number is None or not math.isfinite(number), text  # what says a number is not refused
            continue
        if math.isnan(value):
            assert text.strip().lower() in NOTHING | {"[not available]"}
            continue
        numbers += 1
        assert value == pytest.approx(said(text), rel=1e-12, abs=0)
    assert numbers > 3_000 * rounds / 20_000
    assert texts > 3_000 * rounds / 20_000


def when(text: str) -> datetime:
    """Return the time that an ISO stamp says, by the digits in it."""
    match = re.fullmatch(r"(.*?)(Z|z|UTC|GMT|[+-]\d\d:?\d\d)?", text.strip()[8:], re.ASCII | re.DOTALL)
    assert match is not None
    digits = re.findall(r"[0-9]+", text.strip()[:8] + match[1])
    year, month, day, hour, minute = map(int, digits[:5])
    second = Decimal(digits[5]) if len(digits) > 5 else Decimal(0)
    fraction = Decimal(f"0.{digits[6]}") if len(digits) > 6 else Decimal(0)
    found = datetime(year, month, day, hour, minute, tzinfo=UTC) + timedelta(seconds=int(second))
    found += timedelta(microseconds=int(fraction * 1_000_000))
    zone = match[2] or "Z"
    if zone[0] in "+-":
        number = zone[1:].replace(":", "")
        shift = timedelta(hours=int(number[:2]), minutes=int(number[2:]))
        found += shift if zone[0] == "-" else -shift
    return found


@pytest.mark.parametrize("rounds", [3_000, pytest.param(30_000, marks=pytest.mark.campaign)])
def test_damaged_stamps(rounds: int) -> None:
    rng, clock = random.Random(2), Clock("iso")
    read = 0
    for _ in range(rounds):
        text = mutated(rng.choice(STAMPS), rng)
        try:
            ns = clock.read_stamp(text)
        except BadStamp:
            continue
        read += 1
        expected = (when(text) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        assert ns // 1000 == expected, text
    assert read > 1_000 * rounds / 30_000


@pytest.mark.parametrize(("form", "scale"), [("unix", 9), ("unix_ms", 6), ("unix_ns", 0)])
@pytest.mark.parametrize("rounds", [500, pytest.param(5_000, marks=pytest.mark.campaign)])
def test_damaged_numbers_of_seconds(form: str, scale: int, rounds: int) -> None:
    rng, clock = random.Random(3), Clock(form)
    read = 0
    for _ in range(rounds):
        text = mutated(str(1_714_564_800 * 10 ** (9 - scale)) + rng.choice(["", ".25", ".123456789123"]), rng)
        try:
            ns = clock.read_stamp(text)
        except BadStamp:
            continue
        read += 1
        assert ns == int(Decimal(text.strip()).scaleb(scale)), text
    assert read > 300 * rounds / 5_000


@pytest.mark.parametrize("rounds", [40, pytest.param(400, marks=pytest.mark.campaign)])
def test_damaged_lines(tmp_path: Path, rounds: int) -> None:
    """Rows of lines that were not touched come out as they are, whatever stands between them."""
    rng, path, lines, damaged, refused = random.Random(4), tmp_path / "log.csv", 400, 0, 0
    config = {
        "path": str(path),
        "time": {"column": "t", "format": "unix"},
        "columns": [{"column": "w", "scope": "node.ac", "unit": "W"}, {"column": "n", "scope": "gpu:0", "unit": "mJ"}],
    }
    alphabet = ALPHABET + "\x85\u2028;|"
    for _ in range(rounds):
        rows = [
            (1_714_564_800 + k, round(rng.uniform(1, 9000), 2), k * 10**6 + rng.randrange(10**6)) for k in range(lines)
        ]
        hit = {k for k in range(lines) if rng.random() < 0.02}
        text = [f"{t},{w} W,{n}" for t, w, n in rows]
        text = [mutated(line, rng, alphabet) if k in hit else line for k, line in enumerate(text)]
        path.write_bytes("\n".join(["t,w,n", *text, ""]).encode("utf-8", "surrogateescape"))
        try:
            archive = open_archive(config)
            power, energy = archive.fetch(*archive.interval)
        except ReadFailed as error:
            if "declare the" not in str(error):  # few lines are damaged: only what looks like a separator is refused
                raise
            refused += 1
            continue
        damaged += len(hit)
        watts = {(row[0], row[2][0]) for row in power.rows}
        joules = {(row[0], row[2][0]) for row in energy.rows}
        for k, (t, w, n) in enumerate(rows):
            if k not in hit:
                assert (t * NS, w) in watts
                assert (t * NS, n * 1e-3) in joules
        assert len(power.rows) <= lines
    assert damaged >= 5 * rounds
    assert refused < rounds / 4


@pytest.mark.parametrize("rounds", [30, pytest.param(300, marks=pytest.mark.campaign)])
def test_noise_is_no_file(tmp_path: Path, rounds: int) -> None:
    rng, path = random.Random(5), tmp_path / "noise.csv"
    for k in range(rounds):
        path.write_bytes((b"t,w\n" if k % 2 else b"") + rng.randbytes(rng.randint(0, 400)))
        config = {"path": str(path), "time": "t", "columns": [{"column": "w", "scope": "node.ac", "unit": "W"}]}
        try:
            archive = open_archive(config)
            found = archive.fetch(*archive.interval)
        except JoulelabError:
            continue
        assert all(len(row[2]) == 1 for f in found for row in f.rows)
    for _ in range(rounds // 5):
        path.write_bytes(b"PAR1" + rng.randbytes(rng.randint(0, 400)) + b"PAR1")
        with pytest.raises(JoulelabError):
            open_archive({"path": str(path), "time": "t", "columns": []})
