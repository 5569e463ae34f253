from __future__ import annotations

import hashlib
import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest
from tests.store.make import close_run, gpus, make_run, open_journal, ramp, write_rows

from joulelab.core.errors import NewerSchema, StoreError
from joulelab.store import manifest, safe_files
from joulelab.store.manifest import FILE, Verifier, check_files, compute_fingerprint, read_manifest, write_manifest
from joulelab.store.run_query import run_query
from joulelab.store.run_reader import open_run
from joulelab.store.seal import seal_run

if TYPE_CHECKING:
    from pathlib import Path

PARQUET = "node1/nvml.fast.parquet"
MARKS = "node1/marks/7-7.jsonl"
MARK = '{"t": 5000000001, "mark": "work", "from": 5000000000, "amounts": {"samples": 64}}\n'


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a sealed run of two streams, with marks."""
    made = make_run(tmp_path)
    write_rows(made, gpus(), ramp(100))
    (made / MARKS).write_text(MARK)
    close_run(made)
    seal_run(made)
    return made


def find_statuses(run: Path, *, hashes: bool = True) -> dict[str, str]:
    records = read_manifest(run)
    assert records is not None
    return {c.name: c.status for c in check_files(run, records, hashes=hashes) if c.status != "whole"}


def find_codes(run: Path) -> dict[str, str]:
    with open_run(run) as opened:
        opened.tables()
        opened.marks()
        damage = opened.damage(opened.events())
        return {p.path.relative_to(run).as_posix(): p.code for p in damage}


def test_a_seal_records_size_rows_and_content_of_every_raw_file(run: Path) -> None:
    records = read_manifest(run)
    assert records is not None
    assert sorted(records) == ["end.json", MARKS, PARQUET, "run.json"]
    assert records[PARQUET].rows == 100
    assert records["run.json"].rows is None
    for name, record in records.items():
        data = (run / name).read_bytes()
        assert (record.size, record.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert find_statuses(run) == {}
    assert find_codes(run) == {}


def test_a_run_that_no_meter_was_read_for_has_a_manifest_too(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    close_run(made)
    seal_run(made)
    assert sorted(read_manifest(made) or {}) == ["end.json", "run.json"]


def test_sizes_are_compared_without_reading_and_content_on_request(run: Path) -> None:
    data = bytearray((run / PARQUET).read_bytes())
    data[100] ^= 1
    (run / PARQUET).write_bytes(data)
    assert find_statuses(run, hashes=False) == {}
    assert find_statuses(run) == {PARQUET: "changed"}
    os.truncate(run / PARQUET, 50)
    assert find_statuses(run, hashes=False) == {PARQUET: "cut"}
    (run / PARQUET).unlink()
    assert find_statuses(run, hashes=False) == {PARQUET: "missing"}
    os.mkfifo(run / PARQUET)
    assert find_statuses(run) == {PARQUET: "unreadable"}


def test_rows_and_lines_of_changed_files_are_not_read(run: Path) -> None:
    data = bytearray((run / PARQUET).read_bytes())
    data[100] ^= 1
    (run / PARQUET).write_bytes(data)
    (run / MARKS).write_text(MARK.replace("64", "65"))
    with open_run(run) as opened:
        assert opened.tables() == []
        assert opened.marks() == []
    assert find_codes(run) == {PARQUET: "changed", MARKS: "changed"}


def test_marks_of_a_process_that_outlived_the_run_are_no_damage(run: Path) -> None:
    with (run / MARKS).open("a") as file:
        file.write(MARK)
    assert find_codes(run) == {}
    with open_run(run) as opened:
        assert len(opened.marks()) == 2


@pytest.mark.system  # pure, and slow
def test_queries_of_samples_name_files_that_are_missing_or_cut(run: Path, tmp_path: Path) -> None:
    other = make_run(tmp_path)
    write_rows(other, gpus(), ramp(10))
    close_run(other)
    seal_run(other)
    left_out: dict[Path, str] = {}
    sql = "SELECT count(*) FROM nvml_fast"
    assert run_query(tmp_path, sql, left_out=left_out)[1] == [(110,)]
    os.truncate(run / PARQUET, 50)
    assert run_query(tmp_path, sql, left_out=left_out)[1] == [(10,)]
    assert [*left_out] == [run / PARQUET]
    left_out.clear()
    (run / PARQUET).unlink()
    assert run_query(tmp_path, sql, left_out=left_out)[1] == [(10,)]
    assert left_out == {run / PARQUET: "it is missing"}


@pytest.mark.parametrize("name", ["run.json", "end.json"])
def test_documents_are_verified(run: Path, name: str) -> None:
    (run / name).write_text((run / name).read_text() + " ")
    assert find_codes(run) == {name: "changed"}


def test_a_run_json_without_its_host_is_changed(run: Path) -> None:
    """A flipped bit in the name of a key."""
    text = (run / "run.json").read_text()
    (run / "run.json").write_text(text.replace('"host"', '"hort"', 1))
    assert find_codes(run)["run.json"] == "changed"


def test_missing_files_and_folders_are_named_once(run: Path) -> None:
    (run / MARKS).unlink()
    assert find_codes(run) == {MARKS: "missing"}
    (run / MARKS).parent.rmdir()
    assert find_codes(run) == {"node1/marks": "missing"}
    (run / "node1").rename(run / "node2")
    assert find_codes(run)["node1"] == "missing-host"
    (run / "end.json").unlink()
    assert find_codes(run)["end.json"] == "missing"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"schema": 1}',
        '{"schema": 1, "files": {"run.json": {"size": "1"}}}',
        '{"schema": 1, "files": {"run.json": {"size": 1, "sha256": "", "Rows": 2}}}',
        '{"wchema": 1, "files": {"run.json": {"size": 1, "sha256": ""}}}',
    ],
)
def test_a_damaged_manifest_is_told_and_stays(run: Path, text: str) -> None:
    (run / FILE).write_text(text)
    with pytest.raises(StoreError, match=r"manifest\.json is damaged"):
        read_manifest(run)
    assert find_codes(run) == {FILE: "no-manifest"}
    write_manifest(run, {})
    assert (run / FILE).read_text() == text


def test_any_change_of_a_manifest_is_noticed(run: Path) -> None:
    """A flipped bit may leave a valid document: another name of a key, another number of rows."""
    good = (run / FILE).read_bytes()
    assert read_manifest(run)
    for at in range(len(good)):
        for changed in (bytes([good[at] ^ 1]), bytes([good[at] ^ 0x20]), b""):
            (run / FILE).write_bytes(good[:at] + changed + good[at + 1 :])
            with pytest.raises(StoreError):
                read_manifest(run)


@pytest.mark.parametrize("name", ["../../etc/passwd", "../other.parquet"])
def test_names_that_lead_out_of_the_run_are_no_records(run: Path, name: str) -> None:
    record = {"size": 1, "sha256": ""}
    (run / FILE).write_text(json.dumps({"schema": 1, "files": {name: record}}))
    with pytest.raises(StoreError, match="incomplete"):
        read_manifest(run)


def test_a_newer_manifest_is_not_read(run: Path) -> None:
    (run / FILE).write_text('{"schema": 2, "files": {}}')
    with pytest.raises(NewerSchema):
        read_manifest(run)


def make_unsealed(runs: Path) -> Path:
    run = make_run(runs)
    write_rows(run, gpus(), ramp(100), meter="before")
    write_rows(run, gpus(), ramp(100))
    (run / MARKS).write_text(MARK)
    close_run(run)
    return run


@pytest.mark.parametrize("name", [MARKS, "node1/nvml.fast.0.journal"])
def test_a_change_between_end_and_seal_is_noticed_before_and_after_it(tmp_path: Path, name: str) -> None:
    run = make_unsealed(tmp_path)
    assert find_codes(run) == {}
    data = (run / name).read_bytes()
    (run / name).write_bytes(data.replace(b"64", b"65") if name == MARKS else data[:-8] + bytes(8))
    assert find_codes(run) == {name: "changed"}
    seal_run(run)
    assert find_codes(run) == {name: "changed"}


def test_a_run_that_is_not_sealed_is_verified_by_its_end(tmp_path: Path) -> None:
    with open_run(make_unsealed(tmp_path)) as run:
        files, has_records = run.check_files()
        assert has_records
        assert {f.name: f.status for f in files} == dict.fromkeys(
            (MARKS, "node1/before.fast.0.journal", "node1/nvml.fast.0.journal"), "whole"
        )


def test_a_journal_that_hangs_open_at_the_end_has_no_hash(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with open_journal(run, gpus()):
        close_run(run)
    assert json.loads((run / "end.json").read_text())["sha256"] == {}


def test_a_sealed_run_whose_manifest_was_deleted_is_not_verifiable(run: Path) -> None:
    (run / FILE).unlink()
    assert find_codes(run) == {}


def test_a_run_without_a_manifest_is_not_damaged(run: Path) -> None:
    (run / FILE).unlink()
    assert read_manifest(run) is None
    assert find_codes(run) == {}


def test_what_was_recorded_once_is_not_recorded_again(run: Path) -> None:
    (run / MARKS).write_text(MARK.replace("64", "65"))
    (run / "node2").mkdir()
    write_rows(run, gpus(), ramp(10), host="node2")  # as attached from an archive
    seal_run(run)
    assert find_statuses(run) == {MARKS: "changed"}
    assert (read_manifest(run) or {})["node2/nvml.fast.parquet"].rows == 10


def test_data_that_was_added_after_the_seal_is_damage(run: Path) -> None:
    assert find_codes(run) == {}
    shutil.copytree(run / "node1", run / "node1.bak")
    shutil.copy(run / PARQUET, run / "node1" / "copy.fast.parquet")
    shutil.copy(run / MARKS, run / "node1" / "marks" / "8-8.jsonl")
    found = find_codes(run)
    assert (found["node1.bak"], found["node1/marks/8-8.jsonl"]) == ("added", "added")
    assert "node1/copy.fast.parquet" in found


def test_damaged_rows_are_not_sealed_into_a_new_file(run: Path) -> None:
    before = bytearray((run / PARQUET).read_bytes())
    before[100] ^= 1
    (run / PARQUET).write_bytes(before)
    write_rows(run, gpus(), ramp(10), segment=1)
    assert seal_run(run).left == (("node1/nvml.fast", f"{PARQUET} is damaged"),)
    assert (run / PARQUET).read_bytes() == before


def test_a_later_segment_replaces_the_records_of_its_table(run: Path) -> None:
    write_rows(run, gpus(), ramp(10), segment=1)
    seal_run(run)
    assert (read_manifest(run) or {})[PARQUET].rows == 110
    assert find_codes(run) == {}


def test_a_journal_that_is_still_written_is_not_recorded(tmp_path: Path) -> None:
    made = make_run(tmp_path)
    write_rows(made, gpus(), ramp(10))
    close_run(made)
    with open_journal(made, gpus(table="slow")):
        seal_run(made)
        assert "node1/nvml.slow.0.journal" not in (read_manifest(made) or {})


def test_content_is_hashed_once_while_size_and_time_stay(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    hash_file = manifest._hash_file
    monkeypatch.setattr(manifest, "_hash_file", lambda path, *more: hashed.append(path.name) or hash_file(path, *more))
    verifier = Verifier(run)
    for _ in range(2):
        assert verifier.find_damage(run / PARQUET, hashes=True) is None
    assert hashed == ["nvml.fast.parquet"]
    os.utime(run / PARQUET, ns=(1, 1))
    assert verifier.find_damage(run / PARQUET, hashes=True) is None
    assert len(hashed) == 2


def test_nothing_is_recorded_in_the_folder_of_another_user(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run / FILE).unlink()
    monkeypatch.setattr(safe_files.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PermissionError):
        write_manifest(run, {})
    assert not (run / FILE).exists()


def test_the_fingerprint_follows_files_but_not_results(run: Path) -> None:
    first = compute_fingerprint(run)
    for name in (*manifest.RESULTS, ".hidden"):
        (run / name).write_text("{}")
    (run / "node1" / "link").symlink_to("nowhere")
    (run / "node1" / "link").unlink()
    assert compute_fingerprint(run) == first
    os.utime(run / MARKS, ns=(1, 1))
    assert compute_fingerprint(run) != first
