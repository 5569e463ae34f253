"""All codes of errors of runs, their configuration and the recorder."""

from __future__ import annotations

import pytest
from tests.codes import list_error_codes

RUN = """
config.archive config.broken-meter config.broken-package config.counted-twice config.empty-interval
config.entry-exists config.keyring config.keyring-entry config.limit config.limit-action config.limit-rate
config.missing-value config.no-interval config.no-kernel
config.no-notebook config.no-parameters config.no-secret config.no-such-file config.no-visible-gpu
config.no-workload config.not-a-meter config.not-a-notebook config.not-a-parameter config.not-an-archive
config.not-ended config.not-loaded config.not-measurable config.not-measured config.not-one-job config.not-one-node
config.not-open config.not-written config.one-run config.parameter-twice
config.partly-simulated config.replaces-notebook config.run-twice
config.secret-in-plain-text config.secret-source config.secret-unreadable config.two-names config.unknown-entry
config.unknown-gpu config.unknown-kind config.unknown-meter config.unknown-option config.unknown-parameter
config.unknown-preset config.unknown-workload config.unreadable config.unsafe-change config.unused-entry
config.used-twice config.wrong-name config.wrong-value missing-dependency.library read-failed.impossible-power
read-failed.no-readings store.damaged store.not-copied store.nothing-to-add unavailable.no-cap unavailable.no-cpu
unavailable.no-gpu workload.not-found workload.not-started
"""
RECORDER = """
config.plan unavailable.not-a-meter
"""


@pytest.mark.parametrize(("package", "codes"), [("run", RUN), ("recorder", RECORDER)])
def test_codes_of_errors_stay(package: str, codes: str) -> None:
    assert sorted(list_error_codes(package)) == sorted(codes.split())
