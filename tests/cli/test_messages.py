"""The words of errors and refusals of commands, and the codes that stay whatever the words are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.codes import list_error_codes, list_given_codes
from tests.report.synthetic import make_run

from joulelab.cli.group import run_commands

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Call

ERRORS = """
config.broken-package config.cap config.clock config.file-exists config.folder config.foreign-file config.hosts
config.interval
config.large-file config.map
config.missing-key config.mlperf
config.name config.name-taken config.no-file config.no-job config.no-lines config.no-pair config.no-site
config.no-study config.no-such-picture config.only
config.not-comparable config.not-for-source config.not-into config.not-verifiable config.other-file config.own-option
config.secret-in-plain-text config.too-many-runs config.too-many-subjects config.unknown-key config.unknown-zone
config.write error.nothing-to-draw recorder.not-recorded
store.gone store.no-recorder store.not-run-yet unavailable.failed workload.failed
"""
USAGE = """
exclusive format gate-runs needs-add needs-capture needs-estimate needs-file needs-list
needs-stop-at needs-until needs-values
no-cap no-command no-name no-pair
no-quality no-such-command no-vs no-whole-run one-meter other-mode
period same-run several-files too-many-words unknown-message
"""


def test_codes_of_errors_stay() -> None:
    assert sorted(list_error_codes("cli")) == sorted(ERRORS.split())
    assert sorted(list_given_codes("cli", "UsageError")) == sorted(USAGE.split())


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("shwo", 2, "unknown command 'shwo'; did you mean `joulelab show`?"),
        ("ls more", 2, "Got unexpected extra argument (more); see `joulelab ls --help`"),
        ("show --scopes", 2, "Option '--scopes' requires an argument. See `joulelab show --help`."),
        ("study run --twin", 2, "Option '--twin' requires an argument. See `joulelab study run --help`."),
        ("meters --add", 2, "Option '--add' requires an argument. See `joulelab meters --help`."),
        ("run --name", 125, "Option '--name' requires an argument. See `joulelab run --help`."),
        ("show --runs none", 1, "none: there is no run yet\n-> joulelab run -- COMMAND"),
        ("compare RUN RUN", 2, "A and B are the same run RUN; name two runs of `joulelab ls`"),
        ("export RUN -o -", 2, "--to csv writes several files; name a folder with -o; see `joulelab export --help`"),
        ("run", 125, "no command to measure; type `joulelab run -- CMD`"),
        (
            "run --rated-cpu 65 -- true",
            125,
            "--rated-cpu is only for --estimate; add --estimate; see `joulelab run --help`",
        ),
        ("sweep --set cap=100 -- true", 2, "--set cap: cap is not set by --set; type --cap 100"),
        (
            "sweep --cap lots -- true",
            2,
            "--cap: 'lots' cannot be read; write it as 150, 100:260:10 (W) or 60%:100%:10%",
        ),
        (
            "cap 170 180 -- true",
            125,
            "unexpected argument '180'; write the command after `--`; see `joulelab cap --help`",
        ),
        ("mark x --end", 2, "--end takes no name; `joulelab mark NAME` ends the current phase, too"),
        ("import csv", 2, "no file is given\n-> joulelab import csv FILE"),
        ("report RUN --twin x", 2, "--twin: only a study file can be simulated; leave it out"),
    ],
)
def test_an_error_says_what_where_why_and_what_to_do(
    words: str, code: int, said: str, runs: Path, capsys: pytest.CaptureFixture[str], call: Call
) -> None:
    run = make_run(runs, gpus=0, cpus=0)
    assert run_commands(words.replace("RUN", run.name).split()) == code
    assert capsys.readouterr().err == f"joulelab: {said.replace('RUN', run.name)}\n"
