from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest
from tests.codes import raises_code
from tests.rows import every_row
from tests.store.make import close_run, gpus, make_run, ramp, write_rows

from joulelab.store import safe_files
from joulelab.store.documents import read_document
from joulelab.store.run_folder import RunState, list_runs, read_end, read_meta, read_run_state, write_json_atomic
from joulelab.store.run_query import run_query
from joulelab.store.run_reader import open_run
from joulelab.store.safe_files import is_being_written, is_own, open_append, open_regular, read_regular, replace_file
from joulelab.store.seal import LOCK, seal_run

if TYPE_CHECKING:
    from pathlib import Path


def plant(path: Path, kind: str) -> None:
    """Put something else than a regular file at a path."""
    path.unlink(missing_ok=True)
    if kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a folder":
        path.mkdir()
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    else:
        os.mknod(path, stat.S_IFSOCK)


KINDS = ("a FIFO", "a folder", "a device", "a socket")


@pytest.mark.parametrize("kind", KINDS)
def test_only_regular_files_are_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    plant(path, kind)
    with pytest.raises(OSError, match=f"it is {kind}, not a regular file"):
        open_regular(path)
    with raises_code("store.unreadable"):
        read_document(str(path))
    assert not is_being_written(path)


def test_what_is_exchanged_while_it_is_opened_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    regular, fifo = tmp_path / "file", tmp_path / "fifo"
    regular.write_text("{}")
    os.mkfifo(fifo)
    opened = os.open
    monkeypatch.setattr(safe_files.os, "open", lambda _, flags: opened(fifo, flags))
    with pytest.raises(OSError, match="a FIFO"):
        read_regular(regular)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["run.json", "end.json"])
def test_a_run_whose_documents_are_no_files_is_listed_and_refused(tmp_path: Path, name: str, kind: str) -> None:
    run = make_run(tmp_path)
    close_run(run)
    plant(run / name, kind)
    assert list_runs(tmp_path) == [run]
    with raises_code("store.unreadable"):
        read_meta(run) if name == "run.json" else read_end(run)
    assert read_run_state(run) is RunState.CLOSED
    assert run_query(tmp_path, "SELECT state FROM runs")[1] == [("damaged",)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["nvml.fast.0.journal", "nvml.fast.parquet", "events.0.jsonl", "marks/1-1.jsonl"])
def test_what_is_no_file_is_a_problem_of_the_run(tmp_path: Path, name: str, kind: str) -> None:
    run = make_run(tmp_path)
    write_rows(run, gpus(), ramp(10))
    if name == "nvml.fast.parquet":
        (run / "node1" / "nvml.fast.0.journal").unlink()
    plant(run / "node1" / name, kind)
    assert read_run_state(run) is RunState.KILLED
    with open_run(run) as opened:
        opened.tables()
        (problem,) = opened.damage([*opened.events(), *opened.marks()])
    assert problem.path == run / "node1" / name
    assert (problem.code, problem.lost) == ("unreadable", True)
    seal_run(run)  # what cannot be read is left where it is
    assert os.path.lexists(run / "node1" / name)
    assert run_query(tmp_path, "SELECT count(*) FROM runs")[1] == [(1,)]


def test_a_link_that_leads_nowhere_hides_nothing_else(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_rows(run, gpus(), ramp(10))
    (run / "node1" / "link").symlink_to("nowhere")
    with open_run(run) as opened:
        assert [table.rows for table in opened.tables()] == [10]


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    target = tmp_path / "data.json"
    target.symlink_to(precious)
    write_json_atomic(target, {"a": 1})
    assert precious.read_text() == "kept"
    assert not target.is_symlink()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data.json", "precious"]


def test_temporary_names_cannot_be_foretold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, int]] = []
    opened = os.open

    def note(path: object, flags: int, *given: object, **more: object) -> int:
        made.append((str(path), flags))
        return opened(path, flags, *given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(safe_files.os, "open", note)
    monkeypatch.setattr(safe_files.os, "supports_dir_fd", {note})
    for _ in range(2):
        replace_file(tmp_path / "rows.json", b"{}", sync=False)
    (first, flags), (second, _) = (pair for pair in made if pair[0].startswith(".rows.json"))
    assert first != second
    assert flags & os.O_EXCL
    assert flags & os.O_NOFOLLOW


def test_systems_without_open_folders_write_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safe_files.os, "supports_dir_fd", set())
    replace_file(tmp_path / "a.json", b"{}", sync=False)
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
    monkeypatch.delattr(safe_files.os, "geteuid")
    assert is_own(tmp_path.stat())


@pytest.mark.parametrize("kind", ["a link", "a FIFO", "a folder"])
def test_a_planted_seal_lock_is_not_followed(tmp_path: Path, kind: str) -> None:
    run = make_run(tmp_path)
    journal = write_rows(run, gpus(), ramp(10))
    close_run(run)
    elsewhere = tmp_path / "elsewhere"
    if kind == "a link":
        (run / "node1" / LOCK).symlink_to(elsewhere)
    else:
        plant(run / "node1" / LOCK, kind)
    report = seal_run(run)
    assert not report.sealed
    assert report.left[0][0] == "node1"
    assert journal.exists()
    assert not elsewhere.exists()


def test_a_run_of_another_user_is_not_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path)
    journal = write_rows(run, gpus(), ramp(10))
    close_run(run)
    there = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: there + 1)
    assert seal_run(run).left == (("node1", "it belongs to another user"),)
    assert journal.exists()
    assert not (run / "node1" / LOCK).exists()
    monkeypatch.undo()
    assert seal_run(run).sealed == ("node1/nvml.fast",)


def test_caches_are_refused_in_the_folder_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = os.geteuid()
    monkeypatch.setattr(safe_files.os, "geteuid", lambda: there + 1)
    with pytest.raises(PermissionError, match="it belongs to another user"):
        replace_file(tmp_path / "results.json", b"{}", sync=False, own=True)
    assert list(tmp_path.iterdir()) == []
    replace_file(tmp_path / "results.json", b"{}", sync=False)


def test_a_folder_is_written_through_a_link_of_ones_own_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    replace_file(tmp_path / "link" / "a", b"1", sync=True)
    assert (tmp_path / "there" / "a").read_bytes() == b"1"
    monkeypatch.setattr(safe_files, "is_own", lambda _: False)
    os.lchown(tmp_path / "link", 1234, 1234) if not os.geteuid() else pytest.skip("only root makes links of others")
    with pytest.raises(OSError, match="Not a directory"):
        replace_file(tmp_path / "link" / "b", b"1", sync=False)


def test_names_as_long_as_names_can_be_are_written(tmp_path: Path) -> None:
    replace_file(tmp_path / ("n" * 255), b"1", sync=False)
    assert [len(p.name) for p in tmp_path.iterdir()] == [255]


def test_permissions_may_be_fixed_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        replace_file(tmp_path / "a", b"1", sync=False, mode=0o644)
        replace_file(tmp_path / "b", b"1", sync=False)
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "ab"] == [0o644, 0o600]


@every_row("kind", ["a link", *KINDS])
def test_lines_are_appended_to_regular_files_only(tmp_path: Path, kind: str) -> None:
    path, elsewhere = tmp_path / "log", tmp_path / "elsewhere"
    if kind == "a link":
        path.symlink_to(elsewhere)
    else:
        plant(path, kind)
    with pytest.raises(OSError):  # noqa: PT011 which one depends on the kind
        os.close(open_append(path))
    assert not elsewhere.exists()
    fd = open_append(tmp_path / "other")
    assert os.get_blocking(fd)
    os.close(fd)


def test_every_level_is_checked_before_a_folder_is_made(tmp_path: Path) -> None:
    top, folder = tmp_path / "top", tmp_path / "top" / "a" / "b" / "c" / "state" / "caps"
    (top / "a" / "b").mkdir(parents=True)
    top.chmod(0o777)
    with pytest.raises(safe_files.UntrustedPlace, match=rf"others can write to {top}$"):
        safe_files.check_folder(folder, 0)
    if not os.geteuid():
        with pytest.raises(safe_files.UntrustedPlace):
            safe_files.make_folder(folder)
    assert list((top / "a" / "b").iterdir()) == []
    top.chmod(0o1777)  # as /tmp is
    safe_files.check_folder(folder, 0)
    safe_files.make_folder(folder)
    safe_files.check_folder(folder, 0)
    (top / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        safe_files.check_folder(top / "file" / "state", 0)


def test_links_on_the_way_are_followed_and_checked(tmp_path: Path) -> None:
    top, link = tmp_path / "top", tmp_path / "trusted" / "link"
    (top / "a").mkdir(parents=True)
    link.parent.mkdir()
    for target in (str(top / "a"), "../top/./a"):
        link.symlink_to(target)
        safe_files.check_folder(link / "state", 0)
        top.chmod(0o775)
        with pytest.raises(safe_files.UntrustedPlace, match=rf"others can write to {top}$"):
            safe_files.check_folder(link / "state", 0)
        top.chmod(0o755)
        link.unlink()
    link.symlink_to("link")
    with pytest.raises(safe_files.UntrustedPlace, match="too many links"):
        safe_files.check_folder(link / "state", 0)
    with pytest.raises(safe_files.UntrustedPlace, match="is no folder of its own"):
        safe_files.check_folder(link, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_folders_and_links_of_others_are_refused(tmp_path: Path) -> None:
    top, link = tmp_path / "top", tmp_path / "link"
    (top / "a" / "b").mkdir(parents=True)
    link.symlink_to(top)
    os.chown(link, 12345, -1, follow_symlinks=False)
    with pytest.raises(safe_files.UntrustedPlace, match=rf"{link} belongs to user 12345") as caught:
        safe_files.check_folder(link / "state", 0)
    assert caught.value.next.endswith(f"sudo chown -h root {link}")
    os.chown(top, 12345, -1)
    with pytest.raises(safe_files.UntrustedPlace, match=rf"{top} belongs to user 12345"):
        safe_files.make_folder(top / "a" / "b" / "state")
    assert not (top / "a" / "b" / "state").exists()
