"""All codes of errors of this package: of the classes, and more precise ones."""

from __future__ import annotations

from tests.codes import list_error_classes, list_error_codes

CLASSES = """
config defect denied device-lost error meter missing-dependency newer-schema not-a-run read-failed recorder refused
store unavailable workload write-failed
"""
ERRORS = """
config.no-time config.not-toml config.several config.time-too-short refused.out-of-range
"""


def test_codes_of_classes_stay() -> None:
    assert sorted(set(list_error_classes().values())) == sorted(CLASSES.split())


def test_codes_of_errors_stay() -> None:
    assert sorted(list_error_codes("core")) == sorted(ERRORS.split())
