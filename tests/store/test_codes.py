"""All codes of errors and of damage of this package."""

from __future__ import annotations

from tests.codes import list_error_codes, list_given_codes, list_strings

ERRORS = """
config.no-calibration config.query-failed config.query-statements config.query-syntax
not-a-run.ambiguous not-a-run.folder not-a-run.label not-a-run.none-yet not-a-run.unknown
refused.exists refused.query-changes refused.query-files
refused.query-memory refused.query-rows refused.query-time
store.attach store.bad-journal store.bad-name store.bad-row store.bad-times store.bad-value store.channels-differ
store.closed store.damaged store.exists store.export store.name-clash store.no-clock store.no-free-id
store.no-interval store.no-schema store.no-streams store.not-closed store.not-created store.old-schema
store.other-file store.seal-differs store.torn-rows store.unknown-channel store.unknown-stream store.unreadable
store.unwritable store.vanishing
"""
DAMAGE = """
added
bad-lines bad-rows changed cut-off missing missing-host missing-streams no-folder no-manifest no-meters no-rows no-stop
torn-line torn-row unreadable
"""


def test_codes_of_errors_stay() -> None:
    assert sorted(list_error_codes("store")) == sorted(ERRORS.split())


def test_codes_of_damage_stay() -> None:
    chosen = {"changed", "unreadable"} & list_strings("store")  # by what the manifest says, or where nothing is given
    assert sorted(list_given_codes("store", "FileProblem", 3) | chosen) == sorted(DAMAGE.split())
