"""Verify runs, and figures of others: `joulelab verify RUN|FOLDER|FILE...`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.output import print_blocks, print_json, print_notice, show_progress
from joulelab.cli.parameters import format_examples, json_option, runs_option

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from joulelab.analysis.outside_figures import StandardRow
    from joulelab.analysis.result import Check, Result
    from joulelab.report.terminal import TextBlock
    from joulelab.store.verification import Verification

EXAMPLES = format_examples(
    "joulelab verify last",
    "joulelab verify joulelab-runs/* --json",
    "joulelab verify emissions.csv",
    "joulelab verify submission/run_1",
)
MOST_FINDINGS = 20
MOST_ROWS = 100_000  # of an emissions.csv
RESULT_WIDTH = 8


@dataclass(slots=True)
class OutsideReport:
    """Hold the checks of one file or folder of others: its answer in words, the recomputed result, the checks."""

    path: Path
    kind: str
    answer: list[tuple[str, str]]
    checks: list[Check] = field(default_factory=list)
    result: Result | None = None
    error: str = ""
    compared: Mapping[str, int] | None = None  # lines of a table by comparison

    @property
    def name(self) -> str:
        """Return the name of a file, or the path of a folder: those of submissions are all called `run_1`."""
        return self.path.name if self.path.is_file() else str(self.path)

    @property
    def has_failed(self) -> bool:
        """Return whether a figure does not follow."""
        return bool(self.error) or any(check.status == "failed" for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        from joulelab.analysis.result import make_plain
        from joulelab.report.messages import word_check

        worded = [make_plain(check) | {"text": word_check(check).text} for check in self.checks]
        plain: dict[str, Any] = {"name": self.name, "kind": self.kind, "status": "failed" if self.has_failed else "ok"}
        plain |= {"checks": worded, "error": self.error or None}
        plain |= {} if self.compared is None else {"compared": dict(self.compared)}
        if self.result is not None:
            energy = self.result.energy
            per = {kind: make_plain(q) for kind, q in self.result.per_work().items()}
            plain |= {"energy": make_plain(energy), "duration_s": self.result.duration_s, "per_work": per}
        return plain


@click.command("verify", epilog=EXAMPLES)
@click.argument("run", nargs=-1, required=True, metavar="RUN|FOLDER|FILE...")
@click.option(
    "--machine-nodes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Nodes of the whole machine, for the EE HPC WG level.",
)
@json_option
@runs_option
@click.pass_context
def command(context: click.Context, run: tuple[str, ...], machine_nodes: int | None, as_json: bool, runs: Path) -> None:
    """Check runs and the figures of others.

    Of a run, size and SHA-256 of all files are compared with its manifest; for a single run the level of the EE HPC WG
    and the sampling rules of MLPerf follow. A FOLDER of an MLPerf power submission is computed again from its raw
    data. A FILE of CodeCarbon (emissions.csv) is checked for figures that do not follow from each other.

    The exit code is 1 if a file is damaged or missing, or if a figure does not follow. Runs of joulelab 0.1.1 and
    before have no manifest: their files are read, but changes cannot be found, so they are `not verifiable`.
    """
    from joulelab.core.errors import JoulelabError
    from joulelab.store.verification import DAMAGED, verify_run

    found: list[Verification | OutsideReport] = []
    errors = []
    with show_progress(f"verifying {len(run)} runs", len(run)) as step:
        for word in run:
            try:
                found.append(verify_outside(Path(word)) or verify_run(runs, word))
            except JoulelabError as error:  # the other runs are verified all the same
                errors.append(error)
            step()
    own = [each for each in found if not isinstance(each, OutsideReport)]
    levels = {
        each.folder: rows
        for each in own
        if (rows := _find_levels(each.folder, machine_nodes, is_needed=as_json or len(found) == 1))
    }
    if as_json:
        print_json([each.to_json() | _describe_levels(each, levels) for each in found])
    else:
        for each in found:
            print_blocks(_lay_out_outside(each) if isinstance(each, OutsideReport) else _lay_out(each))
            if not isinstance(each, OutsideReport) and each.folder in levels:
                print_blocks(_lay_out_levels(*levels[each.folder]))
    for problem in errors[:-1]:
        print_notice(str(problem))
    if errors:
        raise errors[-1]
    if any(each.has_failed if isinstance(each, OutsideReport) else each.status == DAMAGED for each in found):
        context.exit(1)


def _lay_out(found: Verification) -> list[TextBlock]:
    from joulelab.report.format import format_bytes
    from joulelab.report.tables import make_table
    from joulelab.report.terminal import TextLine
    from joulelab.store.verification import DAMAGED, UNKNOWN, WHOLE

    whole = sum(f.status == WHOLE for f in found.files)
    details = {
        WHOLE: f", {whole} files",
        DAMAGED: f", {whole} of {len(found.files)} files are whole",
        UNKNOWN: ": it has no manifest (not sealed yet, or sealed by joulelab 0.1.1 or before)",
    }
    blocks: list[TextBlock] = [
        TextLine(f"{found.folder.name}  {found.status}{details[found.status]}", is_wrapped=found.status == UNKNOWN)
    ]
    rows = [
        (f.name, format_bytes(f.record.size), "" if f.record.rows is None else f.record.rows, f.status)
        for f in found.files
    ]
    if rows:
        blocks.append(make_table(["file", "size", "rows", "status"], rows, left=(0, 3)))
    for name, text in found.problems:
        line = f"damaged  {name}: {text}" if found.status == DAMAGED else f"note  {text}"
        blocks.append(TextLine(line, is_wrapped=False))
    if found.status == DAMAGED:
        blocks.append(TextLine("next     copy the run folder again from its origin"))
    return blocks


# Standards -------------------------------------------------------------------------------------------------------

Levels = tuple[list["StandardRow"], list["StandardRow"], bool]  # of EE HPC WG, of MLPerf; whether it is simulated


def _find_levels(folder: Path, machine_nodes: int | None, *, is_needed: bool) -> Levels | None:
    """Return the aspects of standards for a run that has ended; None if it has no result."""
    if not is_needed:
        return None
    from joulelab.analysis.outside_figures import judge_levels, judge_mlperf
    from joulelab.analysis.results_file import load_result
    from joulelab.core.errors import JoulelabError
    from joulelab.report.citation import gather_measurement
    from joulelab.store.run_folder import read_meta
    from joulelab.store.run_reader import open_run

    try:
        result = load_result(folder)
        if result.state == "live" or result.is_damaged:  # the verification has the reason
            return None
        facts = gather_measurement(result, read_meta(folder), machine_nodes, open_run(folder).tables())
    except JoulelabError:
        return None
    return judge_levels(facts), judge_mlperf(facts), bool(result.twin)


def _lay_out_levels(levels: list[StandardRow], rules: list[StandardRow], is_simulated: bool) -> list[TextBlock]:
    from joulelab.analysis.outside_figures import find_level
    from joulelab.report.messages.verify_messages import ASPECTS, CONDITIONS, NEEDS
    from joulelab.report.tables import TableRow, make_table
    from joulelab.report.terminal import BLANK_LINE, TextLine

    level = find_level(levels)
    met = sum(bool(rule.level) for rule in rules)
    name = f"level {level} of 3" if level else "no level"
    conditions = [CONDITIONS[row.condition] for row in levels if row.condition] if level else []
    condition = f", if {' and '.join(conditions)}" if conditions else ""
    prefix = "A simulated node; on real hardware this would be: " if is_simulated else ""
    answer = f"{prefix}EE HPC WG: {name}{condition}. MLPerf sampling: {met} of {len(rules)} rules are met."
    rows = [
        (f"EE HPC WG: {ASPECTS[row.aspect]}", "?" if row.level is None else str(row.level), NEEDS.get(row.needs, ""))
        for row in levels
    ]
    mlperf = [
        (f"MLPerf: {ASPECTS[row.aspect]}", "yes" if row.level else "no", NEEDS.get(row.needs, "")) for row in rules
    ]
    made = [TableRow(cells, has_rule_below=k == len(rows) - 1) for k, cells in enumerate(rows)]
    table = make_table(("aspect", "level", "needed for the next level"), [*made, *mlperf], left=(0, 1, 2))
    return [BLANK_LINE, TextLine(answer), table]


def _describe_levels(each: Verification | OutsideReport, levels: dict[Path, Levels]) -> dict[str, Any]:
    found = None if isinstance(each, OutsideReport) else levels.get(each.folder)
    if found is None:
        return {}
    from joulelab.analysis.outside_figures import find_level
    from joulelab.report.messages.verify_messages import CONDITIONS, NEEDS

    def describe(rows: Iterable[StandardRow]) -> list[dict[str, Any]]:
        return [
            {"aspect": row.aspect, "level": row.level, "needs": NEEDS.get(row.needs), **row.numbers}
            | ({"condition": CONDITIONS[row.condition]} if row.condition else {})
            for row in rows
        ]

    ours, rules, is_simulated = found
    levels_of_run = {"level": find_level(ours), "aspects": describe(ours)}
    return {"ee_hpc_wg": levels_of_run, "mlperf": describe(rules), "simulated": is_simulated}


# Figures of others -----------------------------------------------------------------------------------------------


def verify_outside(path: Path) -> OutsideReport | None:
    """Check a file of CodeCarbon or a folder of MLPerf; None for anything else. Raises JoulelabError."""
    from joulelab.instruments.file.mlperf import find_power_log

    if path.is_dir() and not (path / "run.json").exists():
        spl = find_power_log(path)
        return None if spl is None else _verify_mlperf(path, spl)
    if path.is_file() and path.suffix.lower() in (".csv", ".gz"):
        return _verify_table(path)
    return None


def _verify_table(path: Path) -> OutsideReport:
    from itertools import islice

    from joulelab.analysis.outside_figures import check_codecarbon, list_compared, read_codecarbon_rows
    from joulelab.analysis.result import Check
    from joulelab.core.errors import ConfigError
    from joulelab.core.quantity import J_PER_KWH
    from joulelab.instruments.file.sources import CsvSource
    from joulelab.instruments.file.tool_results import find_tool
    from joulelab.report.messages.verify_messages import COMPARISONS

    source = CsvSource(path)
    if find_tool(source.names) != "codecarbon":
        then = "name a run, the folder of an MLPerf submission, or an emissions.csv of CodeCarbon"
        why = "it has none of CodeCarbon's columns"
        raise ConfigError("it cannot be verified", where=str(path), why=why, next=then, code="config.not-verifiable")
    cells = list(islice(source.read_rows(), MOST_ROWS + 1))
    if len(cells) > MOST_ROWS:
        what, then = f"it has more than {MOST_ROWS:,} lines", "split it, and verify the parts"
        raise ConfigError(what, where=str(path), next=then, code="config.large-file")
    if not cells and not source.faults.shape:
        what, then = "it has no lines", "name a file with runs: CodeCarbon writes a line at the end of each"
        raise ConfigError(what, where=str(path), next=then, code="config.no-lines")
    rows, checks = read_codecarbon_rows(source.names, cells)
    checks += check_codecarbon(rows)
    if source.faults.shape:
        texts = {"column": "the whole line", "text": "another number of cells"}
        checks.append(Check("codecarbon.cell", "failed", f"line {source.faults.first_line}", texts=texts))
    skipped = {check.scope for check in checks if check.code in ("codecarbon.stage", "codecarbon.duplicate")}
    counted = [row for row in rows if row.place not in skipped and row.numbers.get("energy_consumed") is not None]
    stated_j = sum(row.numbers.get("energy_consumed") or 0.0 for row in counted) * J_PER_KWH
    each = [list_compared(row) for row in rows]
    compared = {name: sum(one[name] for one in each) for name in COMPARISONS}
    answer = _word_table(len(rows) + source.faults.shape, len(counted), stated_j, checks, compared)
    return OutsideReport(path, "codecarbon", answer, checks, compared=compared)


def _word_table(
    rows: int, counted: int, stated_j: float, checks: list[Check], compared: Mapping[str, int]
) -> list[tuple[str, str]]:
    from joulelab.report.format import format_joules
    from joulelab.report.messages.verify_messages import COMPARISONS

    bad = {check.scope.partition(",")[0] for check in checks if check.status == "failed"}
    warnings = sum(check.status == "warning" for check in checks)
    verdict = f"{len(bad)} of {rows} lines have figures that do not follow" if bad else ""
    verdict = verdict or (f"no figure is wrong for certain; warnings: {warnings}" if warnings else "")
    done = [COMPARISONS[name] for name, lines in compared.items() if lines]
    verdict = verdict or ("no figure contradicts the others" if done else "nothing can be compared")
    lacks = [
        f"{COMPARISONS[name]} ({rows - lines} of {rows} lines)" for name, lines in compared.items() if lines < rows
    ]
    left = f" ({rows - counted} of {rows} lines are in others, twice, or without energy)" if counted < rows else ""
    return [
        ("answer", verdict),
        *([("compared", ", ".join(done))] if done else []),
        *([("missing", f"figures to compare {', '.join(lacks)}")] if lacks else []),
        ("energy", f"{format_joules(stated_j)} stated in {counted} lines{left}; CodeCarbon states no uncertainty"),
    ]


def _verify_mlperf(path: Path, spl: Path) -> OutsideReport:
    import tempfile

    from joulelab.analysis.outside_figures import PowerControl, PowerLog, check_power_log
    from joulelab.core.errors import JoulelabError
    from joulelab.instruments.file.mlperf import read_control, read_power_log, read_window

    result, error = None, ""
    try:
        with tempfile.TemporaryDirectory(prefix="joulelab-verify-") as scratch:
            result = _recompute(path, Path(scratch))
    except JoulelabError as failure:
        error = str(failure)
    window, load = read_window(spl)
    control = PowerControl(**read_control(spl), **load)
    checks = check_power_log(PowerLog(*read_power_log(spl)), window, control)
    return OutsideReport(path, "mlperf", _word_recomputed(result, error, checks), checks, result, error)


def _recompute(path: Path, scratch: Path) -> Result:
    """Import a submission into a folder of its own, and analyse it as any run. Raises JoulelabError."""
    import importlib
    import os

    from joulelab.analysis.results_file import load_result
    from joulelab.run.run_import import ImportRequest, import_archives, make_archive_request

    logs = importlib.import_module("joulelab.cli.import").find_mlperf_logs([str(path)])  # `import` is no name
    requests = [make_archive_request("file", Path(log).stem, {"path": log}, os.environ) for log in logs]
    wanted = ImportRequest(source="mlperf", command=["joulelab", "verify", str(path)])
    return load_result(import_archives(scratch, requests, wanted).run)


def _word_recomputed(result: Result | None, error: str, checks: list[Check]) -> list[tuple[str, str]]:
    from joulelab.report.run_summary import list_work_facts, write_energy_answer

    if result is None:
        return [("answer", f"cannot be computed again: {error}")]
    made = [check.status for check in checks if check.status != "note"]
    failed, warnings = made.count("failed"), made.count("warning")
    verdict = f"{failed} of {len(made)} checks failed" if failed else f"no check failed; warnings: {warnings}"
    verdict = verdict if failed or warnings else f"all {len(made)} checks passed"
    span = " of the whole log" if any(check.code == "mlperf.no-window" for check in checks) else ""
    lines = [("answer", verdict), ("energy", f"{write_energy_answer(result, has_time=True)}, computed again{span}")]
    return lines + list_work_facts(result)[:1]


def _lay_out_outside(found: OutsideReport) -> list[TextBlock]:
    from joulelab.report.messages import word_check, word_checks
    from joulelab.report.tables import make_table
    from joulelab.report.terminal import BLANK_LINE, TextLine, list_facts

    blocks: list[TextBlock] = [list_facts([("file", found.name), *found.answer], label_width=RESULT_WIDTH)]
    passed = [word_check(check) for check in found.checks if check.status == "ok"]
    worded = [*word_checks(found.checks), *passed]
    rows = [(each.status, each.text) for each in worded[:MOST_FINDINGS]]
    if rows:
        blocks += [BLANK_LINE, make_table(("result", "check"), rows, left=(0, 1))]
    if len(worded) > MOST_FINDINGS:
        again = f"joulelab verify {shlex.quote(str(found.path))} --json"
        blocks.append(TextLine(f"{len(worded) - MOST_FINDINGS} more: {again}", is_wrapped=False))
    steps = list(dict.fromkeys(each.next for each in worded if each.next and each.status in ("failed", "warning")))
    blocks += [TextLine(f"next     {text}") for text in steps[:3]]
    return blocks
