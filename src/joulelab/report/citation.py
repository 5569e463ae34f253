"""Describe how runs or a study were measured, for the methods section of a paper, and cite joulelab itself.

`gather_methods` returns facts; `word_methods` makes sentences of them, for text, Markdown and LaTeX.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from joulelab.core.scope import find_family
from joulelab.core.text import SERVED_TWIN, name_one
from joulelab.core.version import __version__
from joulelab.report.format import (
    format_duration,
    format_number,
    format_percent,
    format_quantity,
    join_scopes,
    name_twins,
)
from joulelab.report.tables import escape_latex, escape_markdown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from joulelab.analysis.outside_figures import MeasurementFacts
    from joulelab.analysis.result import Result, ScopeResult
    from joulelab.core.quantity import Quantity
    from joulelab.store.run_reader import TableInfo
    from joulelab.study.folder import Study
    from joulelab.study.knobs import Value

TITLE = "joulelab: energy measurement of AI workloads, with uncertainty"
AUTHORS = ("The joulelab founders",)
LICENSE = "Apache-2.0"
YEAR = 2026
KEY = "joulelab"
LARGE_SHARE = 0.1  # of the variance: a term with less does not dominate
MOST_VALUES = 12  # of a knob; beyond, its range is given
METER_NAMES = {
    "amdsmi": "AMD SMI",
    "analyzer": "a power analyzer",
    "cray": "Cray's power counters",
    "estimate": "an estimate from load and rated power",
    "hwmon": "sensors of the kernel (hwmon)",
    "ipmi": "the BMC (IPMI)",
    "modbus": "an energy meter (Modbus)",
    "nvml": "NVML",
    "inference": "the counters of an inference server",
    "plug": "a smart plug",
    "prometheus": "Prometheus",
    "rapl": "RAPL",
    "redfish": "the BMC (Redfish)",
    "slurm": "Slurm's energy accounting",
    "snmp": "a PDU (SNMP)",
}
TOOL_NAMES = {"codecarbon": "CodeCarbon", "zeus": "Zeus", "perun": "perun"}  # their results are totals, no readings
OTHER_PROGRAM = "another program"  # the origin of an imported run that states none
UNCOUNTED = ("gpu", "cpu", "dram")  # scopes without a number: all such devices of a node
KIND_WORDS = {"counter": "energy counter", "power": "power readings, integrated over time"}
ACCURACY_WORDS = {
    "datasheet": "The accuracy is from the data sheet",
    "calibrated": "The meter was calibrated",
    "assumed": "The accuracy is assumed",
}
FAMILY_WORDS = {
    "accel": "accelerator",
    "cpu": "CPU package",
    "dram": "memory domain",
    "gpu": "GPU",
    "outlet": "PDU outlet",
    "psu": "power supply (input)",
    "psu.dc": "power supply (output)",
}
WHOLE_WORDS = {
    "job": "the whole job, as Slurm accounts it",
    "node.ac": "the whole node at its AC input",
    "node.dc": "the node behind its power supplies",
    "psys": "the platform",
    "rack": "the whole rack",
}
TERM_WORDS = {
    "alias": "slow readings of a changing load",
    "break": "resets of counters",
    "clock": "clocks of several hosts",
    "edge": "the start and the end of the runs",
    "gain": "the gain accuracy of the meters",
    "gap": "gaps between readings",
    "guide": "the shape of the load between slow readings",
    "in-step": "load in step with the sensors",
    "lag": "the age of readings",
    "missed": "states that no reading met",
    "offset": "the offset of the meters",
    "quantum": "the resolution of the meters",
    "sampling": "changes of power between readings",
}
# What a scope at the wall leaves out, what one inside of the node leaves out.
OUTSIDE, SUPPLIES = (
    "cooling and power distribution outside of the node, network and storage",
    "losses of power supplies",
)
REST_OF_NODE = "the rest of the node (board, fans, local storage, losses of power supplies)"
AT_WALL = ("node.ac", "rack", "outlet", "psu", "job")
ACCEPTED_MODELS = re.compile(r"WT ?(210|31\d|33\d|500)")


@dataclass(frozen=True, slots=True)
class MeterUse:
    """Hold one kind of reading that the energies come from; `rate_hz` is the mean number of readings per second.

    `accuracy` is its source (datasheet, calibrated, assumed, unknown), `reference` the document or reason.
    """

    meter: str
    kind: str
    scopes: tuple[str, ...]
    models: tuple[str, ...]
    rate_hz: float
    accuracy: str
    reference: str
    is_estimate: bool = False


@dataclass(frozen=True, slots=True)
class StudyFacts:
    """Hold the plan of a study: workloads, settings by name, cells, finished runs per cell (fewest, most), order."""

    name: str
    cells: int
    repeats: tuple[int, int]
    seed: int
    workloads: tuple[str, ...]
    knobs: Mapping[str, tuple[str, ...]]
    warmups: int
    phases: tuple[str, ...]
    scope: str | None


@dataclass(frozen=True, slots=True)
class MethodFacts:
    """Hold how energies were measured. Shares are of one, times in s, `terms` shares of the variance of the energy.

    `relative` is the range of expanded uncertainties (k = 2) over the runs, None if one is unknown. `bound` is the
    largest possible error if the load repeats in step with a sensor, None without such a sensor. `energy` (J) and
    `per_work` are given for a single run. `days` are those of the first and the last run, None in virtual time.
    `damaged` counts runs whose files are missing or changed, `imported` those that other programs measured (`origins`).
    """

    runs: tuple[str, ...]
    versions: tuple[str, ...]
    days: tuple[str, str] | None
    durations_s: tuple[float, float]
    idle_s: tuple[float, float]
    meters: tuple[MeterUse, ...]
    left_out: tuple[str, ...]
    relative: tuple[float, float] | None
    terms: Mapping[str, float]
    bound: float | None
    coverage: float
    warnings: Mapping[str, int]
    failed: int = 0
    damaged: int = 0
    imported: int = 0
    origins: tuple[str, ...] = ()
    simulated: str = ""
    without_energy: int = 0
    energy: Quantity | None = None
    per_work: Mapping[str, Quantity] = field(default_factory=dict)
    study: StudyFacts | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        plain = asdict(self) | {"energy": None if self.energy is None else self.energy.to_json()}
        return plain | {"per_work": {kind: q.to_json() for kind, q in self.per_work.items()}}


def gather_methods(
    results: Sequence[Result], metas: Sequence[Mapping[str, Any]], study: StudyFacts | None = None
) -> MethodFacts:
    """Gather how runs were measured, from their results and the contents of their `run.json`, in the same order."""
    counted = [list_counted_scopes(result, study.scope if study else None) for result in results]
    energies = [_sum_energy(result, scopes, study) for result, scopes in zip(results, counted, strict=True)]
    known = [energy for energy in energies if energy is not None]
    relative = [energy.relative for energy in known if energy.relative is not None]
    single = len(results) == 1 and study is None
    options = [meta.get("options") or {} for meta in metas]
    days = sorted(result.start_utc[:10] for result in results)
    idle = [float(one.get("idle_s") or 0.0) for one in options]
    times = [result.duration_s for result in results]
    imported = [result for result in results if result.outcome == "imported"]
    twins = sorted({result.twin for result in results if result.twin})
    bounds = [_number(energy.bound) / energy.value for energy in known if energy.bounds and energy.value > 0]
    doubts = Counter(name for result in results for name in {c.name for c in result.checks if _is_doubt(c.status)})
    return MethodFacts(
        runs=tuple(result.run for result in results),
        versions=tuple(sorted({str(meta.get("joulelab") or "unknown") for meta in metas})),
        days=None if set(twins) - {SERVED_TWIN} else (days[0], days[-1]),
        durations_s=(min(times), max(times)),
        idle_s=(min(idle), max(idle)),
        meters=_list_meters(results, counted, metas),
        left_out=list_left_out(counted),
        relative=(min(relative), max(relative)) if relative and len(relative) == len(known) else None,
        terms=_share_terms(known),
        bound=max(bounds, default=None),
        coverage=min((s.reading.coverage for scopes in counted for s in scopes), default=0.0),
        warnings=dict(doubts.most_common()),
        failed=sum(result.outcome == "exit" and result.exit_code not in (0, None) for result in results),
        damaged=sum(result.is_damaged for result in results),
        imported=len(imported),
        origins=tuple(dict.fromkeys(result.labels.get("origin", OTHER_PROGRAM) for result in imported)),
        simulated=name_twins(twins).removeprefix("simulated: ") if twins else "",
        without_energy=len(results) - len(known),
        energy=energies[0] if single else None,
        per_work=results[0].per_work() if single else {},
        study=study,
    )


def gather_measurement(
    result: Result, meta: Mapping[str, Any], machine_nodes: int | None = None, tables: Iterable[TableInfo] = ()
) -> MeasurementFacts:
    """Gather how one run was measured, as standards ask; `machine_nodes` is the number of nodes of the machine.

    `tables` are those of the run: they state which counters do not see all the time.
    """
    from joulelab.analysis.outside_figures import MeasurementFacts

    counted = list_counted_scopes(result)
    whole, options = result.group("measured"), meta.get("options") or {}
    rates = [one.reading.readings / result.duration_s for one in counted] if result.duration_s > 0 else []
    meters = _list_meters([result], [counted], [meta])
    streams = [(info.host, stream) for info in tables for stream in info.streams]
    blind = {(host, stream.scope, spec.name) for host, stream in streams for spec in stream.channels if spec.seen < 1}
    return MeasurementFacts(
        families=tuple(dict.fromkeys(find_family(one.scope) for one in counted)),
        # A counter with bounds does not see all the time, as NVML's on H100; at constant power it has no bounds.
        is_counter=bool(counted)
        and all(
            one.reading.kind == "counter"
            and not one.mean_w.bounds
            and (one.host, one.scope, one.reading.channel) not in blind
            for one in counted
        ),
        is_estimate=any(one.estimate for one in counted),
        rate_hz=min(rates, default=0.0),
        coverage=min((one.reading.coverage for one in counted), default=0.0),
        duration_s=result.duration_s,
        idle_s=float(options.get("idle_s") or 0.0),
        mean_w=0.0 if whole is None else whole.mean_w.value,
        nodes=len({one.host for one in counted}),
        machine_nodes=machine_nodes,
        has_analyzer=bool(meters) and all(_is_accepted_analyzer(use) for use in meters),
    )


def _is_accepted_analyzer(use: MeterUse) -> bool:
    """Return whether a power analyzer is of a kind that MLPerf accepts (mlcommons/power-dev, commit 02f42536)."""
    return use.meter == "analyzer" and any(ACCEPTED_MODELS.search(model) for model in use.models)


def _is_doubt(status: str) -> bool:
    return status in ("warning", "failed")


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def list_counted_scopes(result: Result, scope: str | None = None) -> list[ScopeResult]:
    """Return the scopes that make up the energy of a run."""
    group = result.group(scope or "measured")
    if group is None:
        return [one for one in result.scopes if one.scope == scope]
    pairs = set(zip(group.scopes, group.hosts or (result.host,) * len(group.scopes), strict=False))
    return [one for one in result.scopes if (one.scope, one.host) in pairs]


def _sum_energy(result: Result, counted: Sequence[ScopeResult], study: StudyFacts | None) -> Quantity | None:
    if study is not None and study.scope:
        group = result.group(study.scope)
        return group.energy if group is not None else next((one.energy for one in counted), None)
    return result.energy


def _list_meters(
    results: Sequence[Result], counted: Sequence[Sequence[ScopeResult]], metas: Sequence[Mapping[str, Any]]
) -> tuple[MeterUse, ...]:
    uses: dict[tuple[str, str, str, str, bool], list[tuple[ScopeResult, float]]] = {}
    for result, scopes, meta in zip(results, counted, metas, strict=True):
        configured = (meta.get("options") or {}).get("configured") or []
        modules = {str(entry.get("name")): str(entry.get("meter")) for entry in configured}
        for one in scopes:
            read = one.reading
            meter = modules.get(read.meter, read.meter)
            key = (meter, read.kind, read.accuracy, read.reference, read.estimate)
            uses.setdefault(key, []).append((one, result.duration_s))
    return tuple(
        MeterUse(
            meter=key[0],
            kind=key[1],
            scopes=tuple(dict.fromkeys(one.scope for one, _ in found)),
            models=tuple(dict.fromkeys(one.model for one, _ in found if one.model)),
            rate_hz=sum(one.reading.readings for one, _ in found) / max(sum(time for _, time in found), 1e-9),
            accuracy=key[2],
            reference=key[3],
            is_estimate=key[4],
        )
        for key, found in uses.items()
    )


def list_left_out(runs: Sequence[Sequence[ScopeResult]]) -> tuple[str, ...]:
    """Return the parts that are not in the energy of runs, by their counted scopes; a part that some runs lack, too."""
    measured = [scopes for scopes in runs if scopes]
    lacks: dict[str, int] = {}
    for scopes in measured:
        hosts: dict[str, set[str]] = {}
        for one in scopes:
            hosts.setdefault(one.host, set()).add(find_family(one.scope))
        for part in dict.fromkeys(part for families in hosts.values() for part in _list_unmeasured(families)):
            lacks[part] = lacks.get(part, 0) + 1
    names = sorted(lacks, key=lambda part: part == OUTSIDE)  # the widest part comes last
    every = len(measured)
    return tuple(part if lacks[part] == every else f"{part} (in {lacks[part]} of {every} runs)" for part in names)


def _list_unmeasured(families: set[str]) -> tuple[str, ...]:
    if families & set(AT_WALL):
        return (OUTSIDE,)
    if "node.dc" in families:
        return (SUPPLIES, OUTSIDE)
    inner = [name for name, family in (("CPUs", "cpu"), ("memory", "dram")) if family not in families]
    return (*inner, REST_OF_NODE, OUTSIDE)


def _share_terms(energies: Iterable[Quantity]) -> dict[str, float]:
    """Return the mean share of each kind of term in the variance of energies, largest first, without bounds."""
    sums: dict[str, float] = {}
    for energy in energies:
        squares = {kind: u * u for kind, u in energy.without("unseen").budget().items()}
        total = sum(squares.values())
        for kind, square in squares.items():
            sums[kind] = sums.get(kind, 0.0) + (square / total if total else 0.0)
    whole = sum(sums.values())
    return {kind: sums[kind] / whole for kind in sorted(sums, key=lambda kind: -sums[kind])} if whole else {}


def describe_study(study: Study, counts: Sequence[int]) -> StudyFacts:
    """Describe the plan of a study; `counts` are the finished runs of each cell."""
    cells = study.read_cells()
    names = dict.fromkeys(name for cell in cells.values() for name in cell.knobs)
    knobs = {name: {cell.knobs[name] for cell in cells.values() if name in cell.knobs} for name in names}
    workloads = {cell.workload.name: cell.workload for cell in cells.values() if cell.workload.name}
    return StudyFacts(
        name=study.name,
        cells=len(cells),
        repeats=(min(counts, default=0), max(counts, default=0)),
        seed=study.seed,
        knobs={name: tuple(value.label for value in sorted(values, key=_rank_value)) for name, values in knobs.items()},
        workloads=tuple(workloads),
        warmups=int(study.data.get("warmup") or 0),
        phases=tuple(dict.fromkeys(phase for cell in cells.values() for phase in cell.workload.phases)),
        scope=study.data.get("scope") or None,
    )


def _rank_value(value: Value) -> tuple[bool, float, str]:
    """Return the place of a knob's value: numbers by size, then texts."""
    is_number = isinstance(value.value, int | float)
    return not is_number, float(value.value) if is_number else 0.0, value.label


# Sentences


def word_methods(facts: MethodFacts) -> list[str]:
    """Return the sentences of the methods paragraph, in plain text."""
    said = [
        f"These figures are simulated ({facts.simulated}); nothing was measured on real hardware."
        if facts.simulated
        else "",
        _word_subject(facts),
        *_word_study(facts.study),
        _word_covered(facts),
        *(sentence for use in facts.meters for sentence in _word_meter(use)),
        *_word_window(facts),
        *_word_uncertainty(facts),
        f"Not measured: {'; '.join(facts.left_out)}." if facts.left_out else "",
        *_word_doubts(facts),
    ]
    return [sentence for sentence in said if sentence]


def _word_subject(facts: MethodFacts) -> str:
    count = len(facts.runs)
    named = f"The energy of run {facts.runs[0]}" if count == 1 else f"The energies of {count} runs"
    dates = "" if facts.days is None else f" ({' to '.join(dict.fromkeys(facts.days))})"
    is_measured = not facts.simulated and not (facts.meters and all(use.is_estimate for use in facts.meters))
    verb, version = f"{'was' if count == 1 else 'were'} {'measured' if is_measured else 'recorded'}", facts.versions
    text = f"{named}{dates} {verb} with joulelab {', '.join(version)}"
    if facts.imported == count:
        text = f"{named}{dates} {verb} by {_join_words(facts.origins)} and imported by joulelab {', '.join(version)}"
    elif facts.imported:
        text += f"; {facts.imported} of them were imported from {_join_words(facts.origins)}"
    if facts.energy is not None:
        per = [format_quantity(q, f"J/{name_one(kind)}") for kind, q in facts.per_work.items()]
        figures = [f"{format_quantity(facts.energy, 'J')} in {_word_time(facts.durations_s[0])}", *per]
        text += f": {', '.join(figures)}"
    return f"{text}."


def _word_time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 60 else format_duration(seconds)


def _word_study(study: StudyFacts | None) -> list[str]:
    if study is None:
        return []
    low, high = study.repeats
    runs = f"{low} runs each" if low == high else f"{low} to {high} runs each"
    parts = [f"The study {study.name} has {study.cells} cells with {runs}, in random order (seed {study.seed})."]
    parts += [f"Workloads: {', '.join(study.workloads)}."] if study.workloads else []
    varied = [f"{name} = {_word_values(values)}" for name, values in study.knobs.items()]
    parts += [f"Settings: {'; '.join(varied)}."] if varied else []
    parts += (
        [f"{study.warmups} further runs of each cell warmed the node up and do not count."] if study.warmups else []
    )
    parts += [f"These phases have results of their own: {', '.join(study.phases)}."] if study.phases else []
    return parts


def _word_values(values: Sequence[str]) -> str:
    return ", ".join(values) if len(values) <= MOST_VALUES else f"{values[0]} to {values[-1]} ({len(values)} values)"


def _word_covered(facts: MethodFacts) -> str:
    if not facts.meters and facts.damaged:
        return f"Files of {facts.damaged} runs are missing or damaged, so their meters are not known."
    if not facts.meters:
        return "No power meter was read, so there is no energy."
    verb = "It covers" if len(facts.runs) == 1 else "They cover"
    return f"{verb} {_word_scopes(scope for use in facts.meters for scope in use.scopes)}."


def _word_scopes(scopes: Iterable[str]) -> str:
    """Return scopes as nouns: `8 GPUs and 2 CPU packages`."""
    parts = []
    found = dict.fromkeys(scopes)
    for family, count in Counter(map(find_family, found)).items():
        noun = FAMILY_WORDS.get(family, "")
        plural = f"{noun.removesuffix('y')}ies" if noun.endswith("y") else f"{noun}s"
        if family in UNCOUNTED and family in found:
            parts.append(plural)
        else:
            parts.append(f"{count} {noun if count == 1 else plural}" if noun else WHOLE_WORDS.get(family, family))
    return _join_words(parts)


def _word_meter(use: MeterUse) -> list[str]:
    """Return a sentence on the reading, and one on its accuracy."""
    name, kind = METER_NAMES.get(use.meter, use.meter), KIND_WORDS.get(use.kind, use.kind)
    inside = ", ".join([join_scopes(use.scopes), *use.models])
    rate = "never"
    if use.rate_hz > 0:
        often = f"about {format_number(use.rate_hz, 2)} times per second"
        rate = often if use.rate_hz >= 1 else f"every {_word_time(1 / use.rate_hz)}"
    verb = f"{'was' if len(use.scopes) == 1 else 'were'} {'estimated' if use.is_estimate else 'read'}"
    nouns = _word_scopes(use.scopes)
    first = f"{nouns[0].upper()}{nouns[1:]} ({inside}) {verb} by {name}: {kind}, {rate}."
    if use.meter in TOOL_NAMES:
        doubt = ", an estimate or not shown to be measured" if use.is_estimate else ""
        first = f"{nouns[0].upper()}{nouns[1:]} ({inside}): one total by {TOOL_NAMES[use.meter]}{doubt}."
    if use.accuracy == "unknown":
        return [first, "The accuracy is unknown, so no interval is given."]
    source = ACCURACY_WORDS.get(use.accuracy, use.accuracy)
    return [first, f"{source}: {use.reference}." if use.reference else f"{source}."]


def _word_window(facts: MethodFacts) -> list[str]:
    low, high = facts.durations_s
    times = f" ({_word_time(low)} to {_word_time(high)})" if len(facts.runs) > 1 else ""
    span = "time that the imported file states" if facts.imported == len(facts.runs) else "runtime of the command"
    parts = [f"Each energy is that of the {span}, from start to end{times}."] if facts.meters else []
    if not facts.meters:
        return parts
    if facts.idle_s[1]:
        low_idle, high_idle = facts.idle_s
        idle = _word_time(high_idle) if low_idle == high_idle else f"up to {_word_time(high_idle)}"
        parts.append(f"Idle power was recorded for {idle} before; it is not subtracted.")
    else:
        parts.append("Idle power is included.")
    if 0 < facts.coverage < 0.995:
        parts.append(f"Readings cover at least {format_percent(facts.coverage, signed=False)} of that time.")
    return parts


def _word_uncertainty(facts: MethodFacts) -> list[str]:
    if facts.relative is None:
        return ["The uncertainty of the energy is not known."] if facts.meters else []
    low, high = (f"{format_number(share * 100, 2)} %" for share in facts.relative)
    spread = f"± {low}" if low == high else f"± {low} to ± {high}"
    of = "the energy" if len(facts.runs) == 1 else "the energy of a run"
    parts = [f"Intervals are expanded uncertainties (k = 2, about 95 %): {spread} of {of}."]
    large = [
        f"{TERM_WORDS.get(k, k)} ({share:.0%} of the variance)"
        for k, share in facts.terms.items()
        if share >= LARGE_SHARE
    ]
    parts += [f"They are dominated by {_join_words(large)}.".replace("%", " %")] if large else []
    if facts.study is not None:
        parts.append(
            "Intervals of cells include the spread of their runs, pooled over cells that differ only in the cap."
        )
    if facts.bound is not None:
        parts.append(
            "A sensor measures only part of the time: if the load repeats exactly in step with it, the error can reach "
            f"{format_number(facts.bound * 100, 2)} %."
        )
    return parts


def _word_doubts(facts: MethodFacts) -> list[str]:
    parts = []
    estimated = [use for use in facts.meters if use.is_estimate]
    if estimated:
        scopes = join_scopes([scope for use in estimated for scope in use.scopes])
        parts.append(f"The energy of {scopes} is estimated, not measured.")
    if facts.without_energy and facts.meters:
        parts.append(f"{facts.without_energy} of {len(facts.runs)} runs have no energy.")
    if facts.failed:
        parts.append(f"{facts.failed} of {len(facts.runs)} commands failed.")
    if facts.warnings:
        listed = ", ".join(f"{name} ({count})" for name, count in facts.warnings.items())
        parts.append(f"Runs with warnings, out of {len(facts.runs)}: {listed}.")
    return parts


def _join_words(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


# The software itself


def write_bibtex() -> str:
    """Return a BibTeX entry of this version of joulelab."""
    fields = {
        "author": f"{{{' and '.join(AUTHORS)}}}",
        "title": f"{{{TITLE}}}",
        "version": __version__,
        "year": str(YEAR),
        "license": LICENSE,
    }
    lines = [f"  {name:<7} = {{{value}}}," for name, value in fields.items()]
    return "\n".join([f"@software{{{KEY},", *lines, "}"])


def write_citation_file() -> str:
    """Return CITATION.cff (version 1.2.0 of the Citation File Format)."""
    authors = [f'  - name: "{name}"' for name in AUTHORS]
    lines = [
        "cff-version: 1.2.0",
        'message: "If you publish figures that joulelab measured, please cite it; `joulelab cite` prints the entry."',
        f'title: "{TITLE}"',
        "type: software",
        "authors:",
        *authors,
        f'version: "{__version__}"',
        f"license: {LICENSE}",
        "keywords: [energy, power, GPU, measurement, uncertainty, machine learning]",
    ]
    return "\n".join(lines) + "\n"


def write_citation(sentences: Sequence[str], form: str) -> str:
    """Return the paragraph and the BibTeX entry as `text` (not wrapped), `markdown` or `latex`."""
    paragraph = " ".join(sentences)
    if form == "latex":
        safe = escape_latex(paragraph).replace("with joulelab", rf"with joulelab~\cite{{{KEY}}}", 1)
        commented = "\n".join(f"% {line}" for line in write_bibtex().splitlines())
        return f"{safe}\n\n{commented}\n" if sentences else f"{write_bibtex()}\n"
    if form == "markdown":
        entry = f"```bibtex\n{write_bibtex()}\n```\n"
        return f"{escape_markdown(paragraph)}\n\n{entry}" if sentences else entry
    return "\n\n".join(part for part in (paragraph, write_bibtex()) if part) + "\n"
