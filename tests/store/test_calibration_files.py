"""Keep calibrations as files: where they are, which are read, and what is wrong with them."""

from __future__ import annotations

import json

import pytest

from joulelab.core.errors import ConfigError, StoreError
from joulelab.store.calibration_files import (
    MOST_RECORDED,
    compute_digest,
    list_files,
    list_folders,
    load_calibrations,
    read_calibration,
    write_calibration,
)

RECORD = {"schema": 1, "id": "20261118-101500-ab12", "devices": []}


def test_folders_are_chosen_by_the_environment():
    assert list_folders({"JOULELAB_CALIBRATIONS": "/c"})[0].as_posix() == "/c"
    assert list_folders({"JOULELAB_STATE": "/s"})[0].as_posix() == "/s/calibrations"
    user, machine = list_folders({"XDG_STATE_HOME": "/x", "HOME": "/h"})
    assert (user.as_posix(), machine.as_posix()) == ("/x/joulelab/calibrations", "/var/lib/joulelab/calibrations")
    assert list_folders({"HOME": "/h"})[0].as_posix() == "/h/.local/state/joulelab/calibrations"


def test_a_host_reads_its_own_calibrations_and_leaves_out_damaged_ones(tmp_path):
    environ = {"JOULELAB_CALIBRATIONS": str(tmp_path / "c")}
    assert list_files(environ, "n1") == []
    path = write_calibration(environ, "n1", RECORD)
    write_calibration(environ, "n10", RECORD)
    assert read_calibration(path) == {**RECORD, "digest": compute_digest(RECORD)}
    (tmp_path / "c" / "n1@damaged.json").write_text("{")
    records, problems = load_calibrations(environ, "n1")
    assert [record["id"] for record in records] == [RECORD["id"]]
    assert len(problems) == 1


def test_what_is_no_calibration_is_refused(tmp_path):
    (tmp_path / "x.json").write_text('{"schema": 9, "devices": []}')
    with pytest.raises(ConfigError) as found:
        read_calibration(tmp_path / "x.json")
    assert found.value.code == "config.no-calibration"


def test_a_folder_that_cannot_be_written_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError) as found:
        write_calibration({"JOULELAB_CALIBRATIONS": str(tmp_path / "file" / "c")}, "n1", RECORD)
    assert found.value.code == "store.unwritable"


def test_what_is_assumed_is_in_the_digest_of_new_files_only(tmp_path):
    environ = {"JOULELAB_CALIBRATIONS": str(tmp_path)}
    for changed in ({"assumed": {"fans": "unknown"}}, {"is_simulated": False}, {"twin": "b"}):
        record = {**RECORD, "assumed": {"fans": "fixed"}, "is_simulated": True, "twin": "a"}
        path = write_calibration(environ, "n1", record)
        path.write_text(json.dumps({**read_calibration(path), **changed}))
        with pytest.raises(ConfigError):
            read_calibration(path)
        path.write_text(json.dumps({**record, **changed, "digest": compute_digest(record, is_old=True)}))
        assert read_calibration(path)["id"] == RECORD["id"]


def test_a_file_that_was_changed_or_names_no_run_is_refused(tmp_path):
    environ = {"JOULELAB_CALIBRATIONS": str(tmp_path)}
    path = write_calibration(environ, "n1", {**RECORD, "devices": [{"gain": 0.95}]})
    path.write_text(path.read_text().replace("0.95", "0.99"))
    (records, (problem,)) = load_calibrations(environ, "n1")
    assert records == []
    assert "changed or damaged" in problem
    for identity in ("../../x", "", None):
        record = {**RECORD, "id": identity}
        (tmp_path / "x.json").write_text(json.dumps({**record, "digest": compute_digest(record)}))
        with pytest.raises(ConfigError) as found:
            read_calibration(tmp_path / "x.json")
        assert found.value.code == "config.no-calibration"


def test_a_calibration_of_a_twin_is_used_on_this_twin_only(tmp_path):
    environ = {"JOULELAB_CALIBRATIONS": str(tmp_path)}
    write_calibration(environ, "n1", {**RECORD, "is_simulated": True, "twin": "/tmp/twin-a"})
    assert load_calibrations(environ, "n1") == ([], [])
    assert load_calibrations({**environ, "JOULELAB_TWIN": "/tmp/twin-b"}, "n1") == ([], [])
    assert len(load_calibrations({**environ, "JOULELAB_TWIN": "/tmp/twin-a"}, "n1")[0]) == 1


def make_record(number, device, **more):
    row = {"meter": "nvml", "device": device, "scope": "gpu:0"}
    return {**RECORD, "id": f"r{number:03d}", "utc_s": 1e9 + number, "devices": [row], **more}


def test_files_that_a_run_cannot_use_take_no_place_of_others(tmp_path):
    environ = {"JOULELAB_CALIBRATIONS": str(tmp_path)}
    write_calibration(environ, "n1", make_record(0, "GPU-0"))
    for number in range(1, MOST_RECORDED + 2):
        write_calibration(environ, "n1", make_record(number, "GPU-t", is_simulated=True, twin="/tmp/twin-a"))
        (tmp_path / f"n1@s{number:03d}.json").write_text("{")
    records, problems = load_calibrations(environ, "n1")
    assert [record["id"] for record in records] == ["r000"]
    assert len(problems) == MOST_RECORDED + 1


def test_of_too_many_calibrations_the_newest_of_each_device_is_kept(tmp_path):
    environ = {"JOULELAB_CALIBRATIONS": str(tmp_path)}
    write_calibration(environ, "n1", make_record(0, "GPU-0"))
    for number in range(1, MOST_RECORDED + 1):
        write_calibration(environ, "n1", make_record(number, "GPU-1"))
    records, (problem,) = load_calibrations(environ, "n1")
    assert [record["id"] for record in records] == ["r000", *(f"r{n:03d}" for n in range(2, MOST_RECORDED + 1))]
    assert problem.startswith(f"1 of {MOST_RECORDED + 1} calibrations")


def test_a_fit_keeps_the_devices_of_earlier_fits_of_the_same_run(tmp_path):
    environ = {"JOULELAB_CALIBRATIONS": str(tmp_path)}

    def write_fit(*numbers, gain):
        rows = [{"meter": "nvml", "device": f"GPU-{n}", "scope": f"gpu:{n}", "gain": gain} for n in numbers]
        return write_calibration(environ, "n1", {**RECORD, "devices": rows}).name

    assert write_fit(0, 1, 2, gain=1) == f"n1@{RECORD['id']}@gpu0-gpu2.json"
    assert write_fit(0, 2, gain=2) == f"n1@{RECORD['id']}@gpu0-gpu2.json"
    assert write_fit(2, gain=3) == f"n1@{RECORD['id']}@gpu2.json"
    records, problems = load_calibrations(environ, "n1")
    found = {row["scope"]: row["gain"] for record in records for row in record["devices"]}
    assert (found, len(records), problems) == ({"gpu:0": 2, "gpu:1": 1, "gpu:2": 3}, 3, [])
