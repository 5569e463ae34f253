from __future__ import annotations

import os
from pathlib import Path

import joulelab
from joulelab.core.spawn import add_import_path, move_above_standard


def test_a_process_finds_the_joulelab_that_started_it():
    source = str(Path(joulelab.__file__).parents[1])
    assert add_import_path({"A": "1"}) == {"A": "1", "PYTHONPATH": source}
    assert add_import_path({"PYTHONPATH": "/x"})["PYTHONPATH"] == f"/x:{source}"


def test_an_installed_joulelab_is_found_without_help():
    installed = "/usr/lib/python3/site-packages/joulelab/core/spawn.py"
    assert add_import_path({"A": "1"}, installed) == {"A": "1"}


def test_a_file_in_the_place_of_a_standard_stream_is_moved():
    kept = os.dup(0)
    try:
        os.close(0)
        taken = os.open(os.devnull, os.O_RDONLY)
        assert taken == 0
        moved = move_above_standard(taken)
        assert moved > 2
        assert move_above_standard(moved) == moved
        os.close(moved)
    finally:
        os.dup2(kept, 0)
        os.close(kept)
