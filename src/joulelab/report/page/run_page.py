"""Make the report of a run: energy, power over time, parts, uncertainty, checks, configuration.

Tables and facts are those of the terminal (`report.run_tables`); the page shows more of them, never other figures.
"""

from __future__ import annotations

import contextlib
import json
import shlex
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import JoulelabError
from joulelab.core.scope import rank_scope
from joulelab.core.text import SERVED_TWIN, escape_unprintable, name_one
from joulelab.report import footprint_text, run_summary, run_tables
from joulelab.report import format as fmt
from joulelab.report.cap_tables import list_cap_facts
from joulelab.report.charts import run_charts
from joulelab.report.charts.power_chart import make_power_chart
from joulelab.report.messages import add_next_step, join_next_step, word_check, word_lag
from joulelab.report.page.page_blocks import (
    ChartBlock,
    CommandBlock,
    FactList,
    FigureCards,
    FoldedBlocks,
    Paragraph,
    PowerBlock,
    Report,
    ReportSection,
    SideBySide,
    Subheading,
    TableBlock,
    arrange_charts,
)
from joulelab.report.run_rows import count_hidden_phases, list_energy_rows, list_phase_rows
from joulelab.report.tables import Column, make_table, scale_column

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from joulelab.analysis.power_profile import PowerProfile
    from joulelab.analysis.result import Result
    from joulelab.core.spec import Spec, Stream
    from joulelab.report.page.page_blocks import PageBlock
    from joulelab.report.tables import Table
    from joulelab.site.footprint import Footprint, Site
    from joulelab.store.run_reader import TableInfo

INTERVALS = "Intervals are expanded uncertainties (k = 2)."
MOST_GAPS = 200
MOST_SCOPE_LETTERS, MOST_FACT_LETTERS = 200, 400
FEW_METERS = 12  # channels that need no folding
SOURCES = {
    "gain": "error of the meter that grows with the power",
    "offset": "constant error of the meter",
    "quantum": "last digit of the meter",
    "edge": "energy between the start or end of the workload and the nearest reading",
    "sampling": "changes of power between readings, and their age",
    "missed": "states of the load that no reading met",
    "unseen": "largest energy that a sensor may miss that measures part of the time: a bound, not in the interval",
    "in-step": "energy that such a sensor may have missed, if steps or another meter are evidence for it",
    "alias": "load that repeats in step with slow readings",
    "gap": "energy used during gaps",
    "break": "energy used while a counter was reset",
    "missing": "energy before the first and after the last reading",
    "clock": "difference between the clocks of hosts",
    "lag": "uncertain delay of a meter",
    "guide": "fast meters that fill in between the readings of a slow meter",
}


def open_run_report(
    path: Path,
    *,
    handle: str | None = None,
    raw: str | None = None,
    live: str | None = None,
    site: Site | None = None,
) -> Report:
    """Make the report of a run, live or ended, from its folder. Raises JoulelabError.

    `handle` is the name of the run in commands, `site` the one that is set now. `raw` and `live` are addresses of
    finer data and, while the run goes on, of the newest data.
    """
    result, profile = load_result_and_profile(path)
    newest = live if result.state == "live" else None
    return make_run_report(result.with_site(site), path, profile, handle=handle, raw=raw, live=newest)


def load_result_and_profile(path: Path) -> tuple[Result, PowerProfile | None]:
    """Load the result of a run and its power over time, None if there is none. Raises JoulelabError."""
    from joulelab.analysis.analyse import analyse_run
    from joulelab.analysis.power_profile import make_profile
    from joulelab.analysis.results_file import read_inputs, read_result, seal_ended, write_result
    from joulelab.store.run_reader import open_run

    seal_ended(path)
    inputs = read_inputs(path)
    with open_run(path) as opened:
        result = read_result(path)
        if result is None:
            result = analyse_run(opened)
            write_result(path, result, inputs)
        return result, make_profile(opened)


def make_run_report(
    result: Result,
    folder: Path,
    profile: PowerProfile | None,
    *,
    handle: str | None = None,
    raw: str | None = None,
    live: str | None = None,
) -> Report:
    """Make the report of a run, with or without meters; empty sections are left out."""
    sections = [
        ReportSection("summary", "Summary", _summarise(result)),
        ReportSection("power", "Power over time", _show_power(result, profile, raw, live)),
        ReportSection("energy", "Energy by scope", _show_energy(result)),
        ReportSection("phases", "Phases", _show_phases(result)),
        ReportSection("work", "Work that meters counted", _show_counted_work(result)),
        ReportSection("rated", "Comparison with rated power", _show_rated_power(result)),
        ReportSection("distribution", "Distribution of power", _show_distribution(result, profile)),
        ReportSection("meters", "Meters compared", _show_meters(result)),
        ReportSection("uncertainty", "Uncertainty", _show_uncertainty(result)),
        ReportSection("checks", "Checks", _show_checks(result)),
        ReportSection("gaps", "Gaps", _show_gaps(result)),
        ReportSection("workload", "Workload", _show_workload(result)),
        ReportSection("configuration", "Configuration", _show_configuration(folder)),
        ReportSection("recompute", "How to recompute", _show_commands(result, folder, handle or str(folder))),
    ]
    start = [f"{result.start_utc[:19].replace('T', ' ')} UTC"] if result.start_utc else []
    subtitle = " · ".join(
        [*([result.run] if result.name else []), *start, result.host, run_summary.name_ending(result)]
    )
    title, subtitle = escape_unprintable(result.name or result.run), escape_unprintable(subtitle)
    return Report(title, subtitle, tuple(s for s in sections if s.blocks), live=result.state == "live")


def _summarise(result: Result) -> tuple[PageBlock, ...]:
    """Show the answer as `joulelab show` begins, its figures as cards, and warnings to read before they are used."""
    from joulelab.analysis.results_file import make_head

    blocks: list[PageBlock] = []
    if result.twin:
        simulated = fmt.name_twins([result.twin])
        text = f"{simulated[:1].upper()}{simulated[1:]}. Nothing here was measured."
        blocks.append(Paragraph(text, "note warn"))
    if result.state == "live":
        blocks.append(Paragraph("This run is still going on: figures are those so far.", "note"))
    if (wrong := make_head(result).failed_check) is not None:
        blocks.append(Paragraph(f"{wrong.name}: {word_check(wrong).text}", "note bad"))
    headline = run_summary.write_headline(result)
    blocks.append(Paragraph(f"{headline[:1].upper()}{headline[1:]}.", "answer" if result.scopes else "note warn"))
    if result.scopes:
        blocks.append(FigureCards(_list_cards(result)))
    if (check := result.bound_check) is not None:
        bound = word_check(check)
        blocks.append(Paragraph(join_next_step(add_next_step(bound.text, bound.next)), "muted"))
    blocks.append(FactList(tuple(_list_run_facts(result))))
    warnings = tuple(fact for fact in run_summary.list_check_facts(result) if fact[0] in ("failed", "warning"))
    return (*blocks, FactList(warnings, "checks")) if warnings else tuple(blocks)


def _list_cards(result: Result) -> tuple[tuple[str, str, str], ...]:
    energy, whole = result.energy, result.group("measured")
    is_estimate, why = bool(whole and whole.estimate), run_summary.explain_no_interval(result)
    cards = []
    if energy is not None and whole is not None:
        text, _, share = run_summary.format_energy(energy, estimate=is_estimate, why=why).partition(" (")
        scopes = fmt.join_scopes(sorted(dict.fromkeys(whole.scopes), key=rank_scope))
        cards.append(("energy", text, "; ".join(filter(None, (share.removesuffix(")"), scopes)))))
    cards.append(("time", fmt.format_duration(result.duration_s), "so far" if result.state == "live" else ""))
    if whole is not None and whole.mean_w.is_resolved:
        cards.append(("mean power", run_tables.format_mean(whole), ""))
    per_work = result.per_work()
    for kind in run_summary.choose_work_kinds(per_work)[:2]:
        unit = name_one(kind)
        text = fmt.format_quantity(per_work[kind], f"J/{unit}", estimate=is_estimate, why=why)
        cards.append((f"per {unit}", text, fmt.format_work(result.work[kind], kind)))
    return (*cards, *list_footprint_cards(result.footprint, is_estimate=is_estimate))


def list_footprint_cards(footprint: Footprint | None, *, is_estimate: bool = False) -> list[tuple[str, str, str]]:
    """List cost and CO2e as cards, each with its price or carbon intensity; none without a site."""
    if footprint is None or footprint.site is None or not footprint.kwh.is_resolved:
        return []
    site, mark, cards = footprint.site, "~" if is_estimate else "", []
    pue = f", PUE {fmt.format_plain(site.pue)}" if site.pue != 1 else ""
    if footprint.cost is not None and site.price is not None:
        cost = footprint_text.format_cost(footprint.cost, site.currency)
        cards.append(("cost", f"{mark}{cost}", f"{fmt.format_plain(site.price)} {site.currency}/kWh{pue}"))
    if footprint.co2e_kg is not None:
        mass = footprint_text.format_co2e(footprint.co2e_kg)
        cards.append(("CO2e", f"{mark}{mass}", footprint_text.word_site(site)))
    return cards


def _list_run_facts(result: Result) -> list[tuple[str, str]]:
    facts = [("command", shlex.join(result.command))] if result.command else []
    facts += [("covers", covers)] if (covers := run_summary.describe_coverage(result)) else []
    hosts = list(dict.fromkeys(s.host for s in result.scopes))
    if len(hosts) > 1:
        facts.append(("nodes", f"{len(hosts)}: {fmt.join_scopes(hosts)}"))
    models = Counter(s.model for s in result.scopes if s.model and s.scope.startswith("gpu"))
    if models:
        facts.append(("GPUs", ", ".join(f"{count} x {model}" for model, count in models.items())))
    if result.labels:
        facts.append(("labels", ", ".join(f"{k} = {v}" for k, v in result.labels.items())))
    hints = [fact for fact in footprint_text.list_footprint_facts(result, has_hint=True) if fact[0] == "site"]
    facts += footprint_text.list_source_facts(result) or hints
    facts += run_summary.list_work_facts(result) + run_tables.list_rated_facts(result)
    return facts if result.scopes else facts + run_summary.list_missing_facts(result)


def _show_power(
    result: Result, profile: PowerProfile | None, raw: str | None, live: str | None
) -> tuple[PageBlock, ...]:
    return () if profile is None else (PowerBlock(make_power_chart(profile, result), raw, live),)


def _show_energy(result: Result) -> tuple[PageBlock, ...]:
    if not result.scopes:
        return ()
    blocks: list[PageBlock] = []
    if (parts := run_charts.chart_energy_parts(result)) is not None:
        blocks.append(ChartBlock(parts))
    table = run_tables.make_energy_table(list_energy_rows(result))
    shown = _title_table(table, f"Energy and power by scope. {INTERVALS}")
    bars = run_charts.chart_scopes(result)
    blocks.append(shown if bars is None else SideBySide((shown, ChartBlock(bars, "narrow"))))
    blocks.append(FactList(tuple(run_tables.list_meter_facts(result))))
    if joining := run_tables.list_joining_facts(result):
        blocks.append(FactList(tuple(joining)))
    every = run_tables.make_energy_table(list_energy_rows(result, every=True))
    return (*blocks, *_fold_longer("every scope", every, table))


def _title_table(table: Table, title: str, *, is_caption_hidden: bool = False) -> TableBlock:
    return TableBlock(replace(table, title=title), is_caption_hidden)


def _fold_longer(name: str, every: Table, shown: Table | None) -> list[PageBlock]:
    """Fold the table with all rows, if it has more rows than the one that is shown."""
    count = len(every.rows)
    if count <= (0 if shown is None else len(shown.rows)):
        return []
    title = f"{name[:1].upper()}{name[1:]}"
    return [FoldedBlocks(f"{name} ({count} rows)", (_title_table(every, title, is_caption_hidden=True),))]


def _show_phases(result: Result) -> tuple[PageBlock, ...]:
    if not result.phases:
        return ()
    blocks: list[PageBlock] = []
    if (epochs := run_charts.chart_epochs(result)) is not None:
        blocks.append(ChartBlock(epochs))
    table = run_tables.make_phase_table(list_phase_rows(result))
    blocks.append(_title_table(table, f"Phases. {INTERVALS}"))
    if more := count_hidden_phases(result):
        blocks.append(Paragraph(f"and {more} more names, below", "muted"))
    every = run_tables.make_phase_table(list_phase_rows(result, every=True), families=True)
    return (*blocks, *_fold_longer("every phase, by family of devices", every, table))


def _show_counted_work(result: Result) -> tuple[PageBlock, ...]:
    if not result.work_channels:
        return ()
    return (_title_table(run_tables.make_work_table(result), f"Counters of work. {INTERVALS}"),)


def _show_rated_power(result: Result) -> tuple[PageBlock, ...]:
    if not result.scopes:
        return ()
    rated = result.rated
    blocks: list[PageBlock] = []
    if (chart := run_charts.chart_rated_power(result)) is not None:
        blocks.append(ChartBlock(chart))
    text = run_tables.describe_rated(rated)
    blocks.append(Paragraph(f"{text[:1].upper()}{text[1:]}."))
    if rated.ratio is not None:
        blocks.append(Paragraph("Runtime times rated power is a common estimate of energy without a meter.", "muted"))
    alike: dict[tuple[float, str], list[str]] = {}
    for device in rated.devices:
        alike.setdefault((device.watts, device.source), []).append(device.scope)
    rows = [
        (fmt.join_scopes(list(dict.fromkeys(scopes))), len(scopes), fmt.format_watts(watts), source)
        for (watts, source), scopes in alike.items()
    ]
    if rows:
        heads = ("scope", "count", "rated", "known from")
        blocks.append(TableBlock(make_table(heads, rows, left=(0, 3), title="Rated power")))
    return tuple(blocks)


def _show_distribution(result: Result, profile: PowerProfile | None) -> tuple[PageBlock, ...]:
    blocks = arrange_charts(run_charts.chart_distributions(result, profile))
    table = make_percentile_table(result)
    if table.rows:
        blocks.append(_title_table(table, "Percentiles of the readings, weighted by time"))
    return (*blocks, *_fold_longer("every scope", make_percentile_table(result, every=True), table))


def make_percentile_table(result: Result, *, every: bool = False) -> Table:
    """Make a table of the percentiles of power (W) of the scopes of the energy table, or of every scope.

    The last column is the averaging time of one reading.
    """
    several = len({s.host for s in result.scopes}) > 1
    named = [(f"{s.host}/{s.scope}" if several else s.scope, s.statistics) for s in result.scopes]
    named += [(g.name, g.statistics) for g in result.groups]
    wanted = {row.label for row in list_energy_rows(result, every=every)}
    known = [(label, of) for label, of in named if of is not None and label in wanted]
    least = scale_column("min", "W", [of.maximum for _, of in known])
    powers = [least, *(replace(least, name=name, unit="") for name in ("5 %", "median", "95 %", "99 %", "max"))]
    rows = []
    for label, of in known:
        window = "an instant" if of.window_s == 0 else fmt.format_period(of.window_s) if of.window_s else "unknown"
        rows.append((label, of.minimum, of.p5, of.median, of.p95, of.p99, of.maximum, window))
    return make_table((Column("", align="left"), *powers, Column("mean over")), rows)


def _show_meters(result: Result) -> tuple[PageBlock, ...]:
    """Show the meters of each scope side by side, with the delays that were removed from their readings."""
    every = run_tables.list_agreement_rows(result, every=True)
    if not every:
        return ()
    rows = run_tables.list_agreement_rows(result) or (every if len(every) <= FEW_METERS else [])
    blocks: list[PageBlock] = []
    if (chart := run_charts.chart_meters(result)) is not None:
        blocks.append(ChartBlock(chart))
    table = run_tables.make_agreement_table(rows) if rows else None
    if table is not None:
        blocks.append(_title_table(table, "Meters of one scope; lags are removed from their readings"))
    blocks += _fold_longer("every channel of every meter", run_tables.make_agreement_table(every), table)
    if result.lags:
        lags = [
            (
                f"{lag.meter} {lag.stream}",
                lag.against,
                fmt.format_signed(lag.total_s, 2 * lag.u_s),
                f"{lag.correlation:.2f}",
                "removed" if lag.applied else "not removed",
                word_lag(lag),
            )
            for lag in result.lags
        ]
        heads = ("stream", "against", "lag, s", "correlation", "", "why")
        table = make_table(heads, lags, left=(0, 1, 4, 5), title="Lags of streams")
        blocks.append(FoldedBlocks("lags of streams", (TableBlock(table, is_caption_hidden=True),)))
    return tuple(blocks)


def _show_uncertainty(result: Result) -> tuple[PageBlock, ...]:
    chart = run_charts.chart_uncertainty(result)
    if chart is None:
        text = "No meter states its accuracy, so there is no interval."
        return (Paragraph(text),) if result.scopes else ()
    sources = tuple((kind, SOURCES[kind]) for kind in chart.keys if kind in SOURCES)
    table = _title_table(
        run_tables.make_budget_table(list_energy_rows(result, every=True)), "Percent of the energy at k = 2, by source"
    )
    return ChartBlock(chart), FactList(sources), FoldedBlocks("as a table", (table,))


def _show_checks(result: Result) -> tuple[PageBlock, ...]:
    """Show failed checks with the next command, meters without readings, then the checks that passed."""
    doubts, missing = run_summary.list_check_facts(result), run_summary.list_missing_facts(result)
    blocks: list[PageBlock] = [FactList(tuple(doubts), "checks")] if doubts else []
    if not doubts and result.scopes:
        blocks.append(Paragraph("All checks passed."))
    if missing and result.scopes:
        blocks.append(FactList(tuple(missing)))
    passed = tuple((c.name, "in order") for c in result.checks if c.status == "ok")
    if passed:
        blocks.append(FoldedBlocks(f"{len(passed)} passed", (FactList(passed),)))
    return tuple(blocks)


def _show_gaps(result: Result) -> tuple[PageBlock, ...]:
    rows = []
    for gap in result.gaps[:MOST_GAPS]:
        length = "to the end" if gap.to_ns is None else fmt.format_duration((gap.to_ns - gap.from_ns) * 1e-9)
        start_s = (gap.from_ns - result.start_ns) * 1e-9
        rows.append((f"{gap.meter} {gap.stream}", f"{start_s:+.2f}", length, gap.reason))
    if not rows:
        return ()
    title = "Times without readings; s after the start of the workload"
    table = TableBlock(make_table(("stream", "from, s", "for", "reason"), rows, left=(0, 3), title=title))
    more = len(result.gaps) - MOST_GAPS
    return (table, Paragraph(f"and {more} more: `joulelab show --json`")) if more > 0 else (table,)


def _show_workload(result: Result) -> tuple[PageBlock, ...]:
    blocks: list[PageBlock] = []
    if facts := list_cap_facts(result) + run_tables.list_load_facts(result):
        blocks.append(FactList(tuple(facts)))
    if result.facts:
        rows = [(name, fmt.format_fact(value, MOST_FACT_LETTERS)) for name, value in result.facts.items()]
        blocks.append(
            TableBlock(make_table(("fact", "value"), rows, left=(0, 1), title="Facts that the workload reported"))
        )
    return tuple(blocks)


def _show_configuration(folder: Path) -> tuple[PageBlock, ...]:
    """Show options, versions, environment, every meter with its accuracy, run.json and end.json."""
    from joulelab.store.run_folder import read_end
    from joulelab.store.run_reader import open_run

    try:
        with open_run(folder) as run:
            meta, tables = run.meta, run.tables()
            problems = tuple(("damaged", f"{p.path.name}: {p.what}") for p in run.problems())
    except (JoulelabError, OSError) as error:
        return (Paragraph(f"The run's folder cannot be read: {error}", "note warn"),)
    files = {"run.json": meta}
    with contextlib.suppress(JoulelabError, OSError):
        files["end.json"] = read_end(folder) or {}
    blocks: list[PageBlock] = [FactList(tuple(_list_options(meta)))]
    if problems:
        blocks.append(FactList(problems, "checks"))
    if (table := make_channel_table(tables)).rows:
        blocks += [Subheading("Meters"), TableBlock(table)]
    if meta.get("environment"):
        facts = tuple((str(k), str(v)) for k, v in meta["environment"].items())
        blocks += [Subheading("Environment"), FactList(facts)]
    for name, data in files.items():
        if data:
            lines = json.dumps(data, indent=1, ensure_ascii=False).splitlines()
            blocks.append(FoldedBlocks(name, (CommandBlock(tuple(lines)),)))
    return tuple(blocks)


def _list_options(meta: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = [("command", shlex.join(map(str, meta.get("command") or [])))]
    facts += [(key, str(meta[key])) for key in ("host", "user", "cwd") if meta.get(key)]
    facts.append(("versions", ", ".join(f"{key} {meta[key]}" for key in ("joulelab", "python") if meta.get(key))))
    options = meta.get("options") or {}
    shown = {k: v for k, v in options.items() if k != "site" and v not in (None, [], {}, "", False)}
    given = [f"{k} = {_format_option(v)}" for k, v in shown.items()]
    facts.append(("options", "; ".join(given)))
    return [(label, text) for label, text in facts if text]


def _format_option(value: Any) -> str:
    if isinstance(value, list) and value and all(isinstance(v, dict) and "name" in v for v in value):
        return ", ".join(f"{v['name']} ({v.get('meter', '')})" for v in value)
    return value if isinstance(value, str) else json.dumps(value)


def make_channel_table(tables: Iterable[TableInfo]) -> Table:
    """Make a table of every channel of power or energy with its accuracy; equal channels share a row.

    The sources of the accuracies are its notes.
    """
    alike: dict[tuple[str, Spec, float, str], list[tuple[str, Stream]]] = {}
    for info in tables:
        for stream in info.streams:
            for spec in stream.channels:
                if spec.kind != "state" and spec.unit in ("W", "J"):
                    key = (info.meter, spec, stream.period_s, stream.model)
                    alike.setdefault(key, []).append((info.host, stream))
    rows, sources = [], dict[str, list[str]]()
    for (meter, spec, period_s, model), members in alike.items():
        hosts = {host for host, _ in members}
        scopes = fmt.join_scopes(list(dict.fromkeys(stream.scope for _, stream in members)))
        nodes = f" on {len(hosts)} nodes" if len(hosts) > 1 else ""
        names = (fmt.shorten_middle(scopes, MOST_SCOPE_LETTERS) + nodes, meter, spec.name, model)
        periods = (fmt.format_period(period_s), fmt.format_period(spec.update_s))
        rows.append((*names, *periods, _format_accuracy(spec), spec.accuracy.source))
        if spec.accuracy.reference:
            sources.setdefault(spec.accuracy.reference, []).append(f"{meter} {spec.name}")
    heads = ("scope", "meter", "channel", "device", "read every", "updated every", "accuracy", "known from")
    table = make_table(heads, rows, left=(0, 1, 2, 3, 6, 7), title="Every channel that was read, and its accuracy")
    notes = (f"{', '.join(dict.fromkeys(channels))}: {source}" for source, channels in sources.items())
    return replace(table, notes=tuple(notes))


def _format_accuracy(spec: Spec) -> str:
    accuracy = spec.accuracy
    if spec.estimate:
        return "an estimate"
    if accuracy.source == "unknown":
        return "unknown"
    parts = [fmt.format_percent(accuracy.gain, signed=False)] if accuracy.gain else []
    parts += [fmt.format_rough(accuracy.offset, spec.unit, 2)] if accuracy.offset else []
    share = f", measures {fmt.format_percent(spec.seen, signed=False)} of the time" if spec.seen < 1 else ""
    return f"± {' + '.join(parts) or '0'}{share}"


def _show_commands(result: Result, folder: Path, name: str) -> tuple[PageBlock, ...]:
    """Show the commands that compute these figures again from the folder, and that measure again."""
    commands = [
        f"joulelab show {name} --budget --phases --scopes all",
        f"joulelab show {name} --json",
        f"joulelab report {name}",
    ]
    if result.scopes:
        commands.append(f"joulelab export {name} --to csv")
    text = f"Every figure of this page is computed from the run's folder, `{folder}`: no meter is needed."
    blocks: list[PageBlock] = [Paragraph(text), CommandBlock(tuple(commands))]
    if result.command and result.outcome != "imported" and result.twin in ("", SERVED_TWIN):
        again = f"joulelab run -- {shlex.join(result.command)}"
        blocks += [Paragraph("To measure again:"), CommandBlock((again,))]
    return tuple(blocks)
