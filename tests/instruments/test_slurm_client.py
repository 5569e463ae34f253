from __future__ import annotations

import datetime as dt
import random
import re
import stat

import pytest
from tests.codes import raises_code
from tests.rows import every_row

from joulelab.core.errors import MeterError, ReadFailed, Unavailable
from joulelab.instruments.slurm import client as slurm
from joulelab.instruments.slurm.client import Answer, SlurmClient

# Written by sacct 22.05.8, fields ROW_FIELDS.
SACCT = """\
1|1|1|root|COMPLETED|0:0|7|2026-11-16T00:08:50|2026-11-16T00:08:57|1|n1|21373
1.batch|1.batch|1||COMPLETED|0:0|7|2026-11-16T00:08:50|2026-11-16T00:08:57|1|n1|26076
1.0|1.0|1||COMPLETED|0:0|4|2026-11-16T00:08:50|2026-11-16T00:08:54|1|n1|12824
5+1|6|7|root|CANCELLED by 1000|0:15|4|2026-11-16T00:08:50|Unknown|2|n[2-3]|
3_[2-9%4]|3|9|root|PENDING|0:0|0|Unknown|Unknown|0|None assigned|18446744073709551614
"""
SSTAT = "1.extern|9832\n1.batch|9405\n1.0|\n"
OTHERS = "11|COMPLETED|2026-11-16T00:20:05|2026-11-16T00:20:08|n1\n12|RUNNING|2026-11-16T00:20:05|Unknown|n1\n"
NODE = "NodeName=n1 OS=Linux 6.1 #1 SMP  State=IDLE CapWatts=n/a CurrentWatts=4275 AveWatts=2849 Temp=n/s\n"
CONFIG = """\
Configuration data as of 2026-11-16T00:09:00
AcctGatherEnergyType    = acct_gather_energy/pm_counters
AcctGatherNodeFreq      = 1 sec
JobAcctGatherFrequency  = task=1,energy=1
Slurmctld(primary) at vm is UP
"""


def ns(text: str) -> int:
    return int(dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC).timestamp()) * 1_000_000_000


def test_rows():
    job, batch, step, part, waiting = slurm.parse_accounting(SACCT)
    assert (job.job, job.step, job.energy_j, job.node_count, job.user) == ("1", "", 21373, 1, "root")
    assert (job.start_ns, job.end_ns) == (ns("2026-11-16T00:08:50"), ns("2026-11-16T00:08:57"))
    assert (batch.step, batch.energy_j, step.step, step.energy_j) == ("batch", 26076, "0", 12824)
    assert (part.job, part.raw, part.state, part.end_ns) == ("5+1", "6", "CANCELLED", None)
    assert (part.energy_j, part.energy_text) == (None, "")
    assert (waiting.energy_j, waiting.energy_text, waiting.nodes) == (None, "18446744073709551614", "")
    assert waiting.start_ns is None


def test_what_is_no_number():
    for text in ("", "n/s", "18446744073709551614", "18446744073709551615", "4294967294", "9223372036854775808"):
        assert slurm.parse_number(text) is None
    for text in ("1.46K", "-1", "1e3", "+5", "٣", "1 2", "0x10", "123456789012345678901"):
        with pytest.raises(ReadFailed):
            slurm.parse_number(text)
    assert slurm.parse_number("n/s") is None
    assert slurm.parse_number(None) is None
    assert slurm.parse_number("4294967294") is None
    assert slurm.parse_number("240") == 240.0


def test_other_answers():
    assert slurm.parse_live(SSTAT) == {"1.extern": 9832, "1.batch": 9405, "1.0": None}
    assert [(j.raw, j.end_ns is None) for j in slurm.parse_others(OTHERS)] == [("11", False), ("12", True)]
    assert slurm.parse_pairs(NODE)["CurrentWatts"] == "4275"
    assert slurm.parse_settings(CONFIG)["AcctGatherNodeFreq"] == "1 sec"


@every_row(
    ("said", "code"),
    [
        ("sacct: error: Problem talking to the database: Connection refused", "read-failed.program"),
        ("slurm_load_node error: Unable to contact slurm controller (connect failure)", "read-failed.program"),
        ("sstat: error: problem getting step_layout for StepId=11.0: Invalid user id", "denied.not-yours"),
        ("slurm_load_jobs error: Invalid job id specified", "unavailable.unknown-job"),
        ("Node nope not found", "unavailable.unknown-job"),
        ("sacct: fatal: Could not establish a configuration source", "unavailable.no-configuration"),
        ("Slurm accounting storage is disabled", "unavailable.no-accounting"),
        ("", "read-failed.program"),
    ],
)
def test_messages_of_programs(said, code):
    asked = SlurmClient(run=lambda words, timeout_s: Answer(1, "", said), where="here")
    with raises_code(code) as caught:
        asked.read_rows(["1"])
    assert caught.value.why
    assert caught.value.next
    assert said[:40] in caught.value.why


def test_an_error_with_exit_code_0_is_no_answer():
    said = "sstat: error: No steps running for job 1"
    with raises_code("unavailable.no-step"):
        SlurmClient(run=lambda words, timeout_s: Answer(0, "", said)).read_live("1")


def test_commands_are_for_machines():
    seen: list[list[str]] = []

    def run(words, timeout_s):
        seen.append(list(words))
        return Answer(0, "", "")

    asked = SlurmClient(run=run)
    asked.read_rows(["7_1"])
    asked.read_others("n[1-2]", ns("2026-11-16T00:08:50"), ns("2026-11-16T00:08:57"))
    asked.read_live("7")
    for words in seen:
        assert "--parsable2" in words
        assert "ConsumedEnergy" not in words[words.index("-o") + 1].split(",")
    assert seen[1][-6:] == ["-N", "n[1-2]", "-S", "2026-11-16T00:08:50", "-E", "2026-11-16T00:08:57"]
    for wrong in ("1;ls", "-a", "", "abc", "1.0", "٣"):
        with pytest.raises(Unavailable):
            asked.read_rows([wrong])


@pytest.fixture
def sacct(tmp_path, monkeypatch):
    """Put a program of one's own in the place of sacct."""

    def write(script: str) -> None:
        path = tmp_path / "sacct"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")

    return write


@pytest.mark.system
def test_programs_are_bounded_in_time(sacct):
    sacct("exec sleep 600")
    with raises_code("read-failed.no-answer"):
        SlurmClient(timeout_s=0.3).read_rows(["1"])


@pytest.mark.system
def test_programs_answer_in_utc_and_plainly(sacct, monkeypatch):
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    monkeypatch.setenv("SACCT_FORMAT", "jobname")
    sacct('[ -z "$SACCT_FORMAT" ] && echo "1|1|$TZ|$SLURM_TIME_FORMAT|$SLURM_CONF|0|0|Unknown|Unknown|0|n1|1"')
    (row,) = SlurmClient(conf="/the/conf").read_rows(["1"])
    assert (row.execution, row.user, row.state) == ("UTC", "standard", "/the/conf")


@pytest.mark.system
def test_where_there_is_no_slurm(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with raises_code("unavailable.no-slurm"):
        SlurmClient().read_settings()


ALPHABET = "0123456789|.+_-:TnKMj,= \n\t\0\x1f٣é[]%Unknown"


def mutated(draw: random.Random, text: str) -> str:
    """Return an answer with some of its characters changed, lost, doubled, or lines mixed; at times pure noise."""
    if draw.random() < 0.1:
        return "".join(draw.choices(ALPHABET, k=draw.randrange(80)))
    letters = list(text)
    for _ in range(draw.choice((1, 1, 2, 5))):
        at = draw.randrange(len(letters) or 1)
        match draw.randrange(5):
            case 0:
                letters[at : at + 1] = draw.choice(ALPHABET)
            case 1:
                del letters[at : at + draw.choice((1, 1, 9))]
            case 2:
                letters[at:at] = draw.choices(ALPHABET, k=draw.choice((1, 3)))
            case 3:
                letters[at:at] = letters[at : at + 20]
            case _:
                letters = letters[:at]
    return "".join(letters)


@every_row(
    ("text", "names"),
    [
        ("", []),
        ("n1", ["n1"]),
        ("n[1-2],x-3.b", ["n1", "n2", "x-3.b"]),
        ("gpu[08-11,20]", ["gpu08", "gpu09", "gpu10", "gpu11", "gpu20"]),
        ("r[1-2]n[1,3]-ib", ["r1n1-ib", "r1n3-ib", "r2n1-ib", "r2n3-ib"]),
    ],
)
def test_lists_of_nodes(text, names):
    assert slurm.expand_nodes(text) == names


@every_row("text", [",", "n[", "n]1", "n[1-]", "n[-2]", "n[1-999999999]", "n1,,n2", "n[1]["])
def test_what_is_no_list_of_nodes(text):
    with raises_code("read-failed.answer"):
        slurm.expand_nodes(text)


@pytest.mark.system  # pure, and slow
def test_fuzzed_accounting():
    """A wrong number is an energy that is not, digit by digit, the last of twelve fields of its own line."""
    draw, good = random.Random(1), 0
    for _ in range(10_000):
        text = mutated(draw, SACCT)
        try:
            rows = slurm.parse_accounting(text)
        except MeterError:
            continue
        good += 1
        lines = [line for line in text.split("\n") if line]
        assert len(rows) == len(lines)
        for row, line in zip(rows, lines, strict=True):
            fields = line.split("|")
            assert len(fields) == 12
            if row.energy_j is not None:
                assert re.fullmatch("[0-9]+", fields[11])
                assert row.energy_j == int(fields[11]) < 2**63
            for t, shown in ((row.start_ns, fields[7]), (row.end_ns, fields[8])):
                assert t is None or t == ns(shown)
    assert good > 500, "the fuzz leaves some answers whole"


@pytest.mark.system  # pure, and slow
def test_fuzzed_live_and_others():
    """A wrong number is one that does not stand in its own line as it is returned."""
    draw, good = random.Random(2), 0
    for _ in range(10_000):
        text = mutated(draw, SSTAT)
        try:
            found = slurm.parse_live(text)
        except MeterError:
            continue
        good += 1
        lines = {line.split("|")[0]: line.split("|")[1] for line in text.split("\n") if line}
        assert found.keys() == lines.keys()
        for name, joules in found.items():
            assert joules is None or str(joules) == (lines[name].lstrip("0") or "0")
    for _ in range(10_000):
        text = mutated(draw, OTHERS)
        try:
            jobs = slurm.parse_others(text)
        except MeterError:
            continue
        good += 1
        for job, line in zip(jobs, [line for line in text.split("\n") if line], strict=True):
            assert job.raw == line.split("|")[0]
            assert job.start_ns is None or job.start_ns == ns(line.split("|")[2])
    assert good > 1000


@pytest.mark.system  # pure, and slow
def test_fuzzed_controller():
    """A wrong number is one that does not follow its key in the text; keys that are lost are absent, not zero."""
    draw = random.Random(3)
    for _ in range(10_000):
        text = mutated(draw, NODE)
        found = slurm.parse_pairs(text)
        try:
            power = slurm.parse_number(found.get("CurrentWatts"))
        except MeterError:
            continue
        if power is not None:
            shown = re.search(r"(?:^|\s)CurrentWatts=(\S*)", text)
            assert shown
            assert power == int(shown[1])
    for _ in range(10_000):
        text = mutated(draw, CONFIG)
        for value in slurm.parse_settings(text).values():
            assert value in text
