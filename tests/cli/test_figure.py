"""`joulelab figure`: kinds are listed, files are where they were asked for, what is wrong is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.report.synthetic import make_run

from joulelab.cli.group import run_commands
from joulelab.cli.output import write_file

pytest.importorskip("matplotlib")
KINDS = {"pdf": b"%PDF", "svg": b"<?xml", "png": b"\x89PNG"}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs", name="first")
    make_run(tmp_path / "runs", name="second", gpu_w=200.0)
    return tmp_path / "runs"


def figure(*words: str) -> int:
    return run_commands(["figure", *words, "--runs", "runs"])


def code_of(capsys: pytest.CaptureFixture[str], *words: str, ended: int = 2) -> str:
    """Return the code of the error that a picture is refused with."""
    capsys.readouterr()
    assert figure(*words, "--json") == ended
    return str(json.loads(capsys.readouterr().out)["error"]["code"])


@pytest.mark.system  # pure, and slow
def test_files_are_written_in_every_format_and_where_asked(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert figure("list", "first", "--json") == 0
    kinds = [each["kind"] for each in json.loads(capsys.readouterr().out)["kinds"]]
    assert kinds[0] == "power"
    assert figure("energy", "first", "--to", "svg", "--to", "png") == 0
    written = capsys.readouterr().out.split()
    assert [name.rpartition(".")[2] for name in written] == ["svg", "png"]
    assert all((runs.parent / name).read_bytes().startswith(KINDS[name[-3:]]) for name in written)
    assert figure("energy", "first", "-o", "here/mine.pdf", "--width", "column") == 0
    assert (runs.parent / "here" / "mine.pdf").read_bytes().startswith(KINDS["pdf"])
    assert figure("overlay", "first", "second", "-o", "here", "--json") == 0
    told = json.loads(capsys.readouterr().out.partition("\n")[2])
    assert told["kind"] == "comparison"
    [file] = told["files"]
    assert file.startswith("here/2")
    assert file.endswith("-overlay.pdf")


@pytest.mark.system  # pure, and slow
def test_only_pictures_of_ours_are_written_over(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.pdf", "a.svg", "a.png"):
        assert figure("energy", "first", "-o", name) == 0
        assert figure("energy", "second", "-o", name) == 0
    foreign = runs.parent / "b.png"
    foreign.write_bytes(b"mine")
    assert code_of(capsys, "energy", "first", "-o", "b.png") == "config.foreign-file"
    assert foreign.read_bytes() == b"mine"
    assert figure("energy", "first", "-o", "b.png", "--force") == 0
    assert foreign.read_bytes().startswith(KINDS["png"])
    assert code_of(capsys, "energy", "first", "-o", "b.png/c.pdf") == "config.folder"
    assert code_of(capsys, "energy", "first", "-o", "-") == "usage.needs-file"
    assert not [path for path in runs.parent.iterdir() if path.name.startswith(".")]


def test_an_ending_that_is_no_picture_is_refused(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(capsys, "energy", "first", "-o", "mine.docx") == "usage.format"
    assert not list(runs.parent.glob("mine*"))


@pytest.mark.system  # pure, and slow
def test_a_device_is_written_into_and_a_link_stays(runs: Path) -> None:
    real, link = runs.parent / "real.pdf", runs.parent / "link.pdf"
    assert figure("energy", "first", "-o", "real.pdf") == 0
    real_bytes, _ = real.read_bytes(), link.symlink_to(real)
    assert figure("power", "first", "-o", "link.pdf") == 0
    assert link.is_symlink()
    assert real.read_bytes() != real_bytes
    write_file(Path("/dev/null"), b"x", what="picture")
    assert Path("/dev/null").is_char_device()


@pytest.mark.system  # pure, and slow
@pytest.mark.usefixtures("runs")
def test_what_cannot_be_drawn_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(capsys, "powr", "first") == "config.no-such-picture"
    assert figure("powr", "first") == 2
    assert "mean power?" in capsys.readouterr().err
    assert code_of(capsys, "power", "first", "-o", "a.png", "--to", "svg") == "usage.format"
    for width in ("wide", "0.1"):
        assert code_of(capsys, "power", "first", "--width", width) == "usage"
    assert code_of(capsys, "power", "third", ended=1) == "not-a-run.unknown"


def test_a_run_without_meters_has_nothing_to_draw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs", gpus=0, cpus=0, name="dark")
    assert code_of(capsys, "power", "dark", ended=1) == "error.nothing-to-draw"
