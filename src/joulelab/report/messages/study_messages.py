"""The notes below the figures of a study or of a comparison: code -> (status, text, next step)."""

# ruff: noqa: E501  one line is one text: easy to find and to edit

from __future__ import annotations

AS_IF = "± {assumed_share:%} is assumed"
PER_UNIT = "energy and time are compared per unit of {per}, EDP per unit squared"

MESSAGES: dict[str, tuple[str, str, str]] = {
    "no-results": ("note", "No cell has a result yet.", ""),
    "cells-missing": ("note", "No result for {missing} of {cells:cell}: {names}.", ""),
    "phase-missing": ("note", "No phase {name} in {slots:slot}: {names}.", ""),
    "work-missing": ("note", "No match for the work {name} in the output of {slots:slot}: {names}.", ""),
    "slot-not-analysed": (
        "warning",
        "{slot} of {cell} ended, but cannot be analysed, so no result includes it: {error}.",
        "Its readings are stored; the same command repeats the analysis.",
    ),
    "cell-unreadable": ("note", "A cell is left out: {error}.", ""),
    "reference-missing": ("note", "The reference has no run[ for {names}], so no gain or loss is given.", ""),
    "reference-unused": (
        "note",
        "{knobs} are not compared with each other, so {value} in the reference has no effect.",
        "",
    ),
    "no-runs-here": (
        "note",
        "{published} of {cells:cell} have no runs here; their number of runs, mean and deviation are the published ones.",
        "",
    ),
    "warm-up": ("note", "{runs:warm-up run} stored, but not used in the results.", ""),
    "precision-reached": (
        "note",
        "{reached} of {cells:cell} reached ± {share:%} of the mean energy (95 %, between repeats) with {fewest~most:repeat}[: {names}]. Repeating does not reduce the gain error of a meter.",
        "",
    ),
    "precision-missed.maximum": (
        "warning",
        "{missed} of {cells:cell} did not reach ± {share:%} of the mean energy with {fewest~most:repeat}, after the maximum of {repeats:run}[ (at worst ± {worst_share:%})]: {names}.",
        "Raise --repeat-max, or measure longer runs.",
    ),
    "precision-missed.no-energy": (
        "warning",
        "{missed} of {cells:cell} have no energy, so they were not repeated further: {names}.",
        "Look for the reason: joulelab meters",
    ),
    "precision-missed.failed": (
        "warning",
        "No run of {missed} of {cells:cell} succeeded, so they were not repeated further: {names}.",
        "Add --retry to run them again.",
    ),
    "precision-missed.unfinished": (
        "note",
        "{missed} of {cells:cell} need more repeats for ± {share:%} of the mean energy: {names}.",
        "Type the same command to continue.",
    ),
    "odd-runs": (
        "note",
        "These repeats differ from the others of their cell; they are marked, but used: {names}. By chance alone about one cell in {chance} has such a repeat.",
        "",
    ),
    "not-capped": (
        "warning",
        "! The cap was not in force in {runs:run} of {names} ({first}); these cells are never chosen as the best.",
        "Look for the reason: joulelab cap status",
    ),
    "reference-not-capped": (
        "warning",
        "! The cap of the reference was not in force ({names}): gains and losses against it are not reliable.",
        "Look for the reason: joulelab cap status",
    ),
    "quality-missed": (
        "note",
        "‡ Not chosen for {goal}, because the mean over repeats misses its quality: {missed} of {cells:cell}.[ Within their interval over repeats they may reach it: {unsure:cell}.]",
        "",
    ),
    "quality-missed.all": (
        "warning",
        "No cell[ of {names}] is within the limits of {goal}[. The mean quality of {missed} of {cells:cell} misses its limit][, of {unsure} by less than the interval over repeats].",
        "The same command with --json shows by how much; finished runs are not repeated.",
    ),
    "quality-unknown": (
        "warning",
        "? Not chosen for {goal}, because a repeat does not report {quality}, or not as a finite number: {unknown} of {cells:cell} ({names}).",
        "Call joulelab.fact(accuracy=0.98) in every run.",
    ),
    "quality-unreported": (
        "warning",
        "No run reports {quality} as a number, so no cell is the best for {goal}.[ The runs report {names}.]",
        "Call joulelab.fact(accuracy=0.98) in every run, or name another quality.",
    ),
    "one-run-each": (
        "note",
        f"Each cell has only one run, so the spread between runs is unknown; {AS_IF}.",
        "Repeat the runs to measure it.",
    ),
    "one-run.pooled": (
        "note",
        "{single} of {cells:cell} have only one run; the spread of all cells is used for them.",
        "",
    ),
    "one-run.unknown": (
        "note",
        f"{{single}} of {{cells:cell}} have only one run, so their spread is unknown; {AS_IF}.",
        "Repeat the runs to measure it.",
    ),
    "wide-cells": (
        "note",
        "{names}: the runs differ significantly more than in other cells, so their own spread is used (by chance: one cell in {chance}).[ Outliers need {fewest} repeats or more.]",
        "",
    ),
    "pooled.all": (
        "note",
        "Spread between runs, pooled over all cells:[ energy {energy_low_share~energy_high_share:%} ({energy_low_freedom~energy_high_freedom} degrees of freedom)][, time {time_low_share~time_high_share:%} ({time_low_freedom~time_high_freedom} degrees of freedom)].",
        "",
    ),
    "pooled.lines": (
        "note",
        "Spread between runs, pooled by line:[ energy {energy_low_share~energy_high_share:%} ({energy_low_freedom~energy_high_freedom} degrees of freedom)][, time {time_low_share~time_high_share:%} ({time_low_freedom~time_high_freedom} degrees of freedom)].",
        "",
    ),
    "pooled.rest": (
        "note",
        "Spread of lines with few runs, pooled over all cells:[ energy {energy_low_share~energy_high_share:%} ({energy_low_freedom~energy_high_freedom} degrees of freedom)][, time {time_low_share~time_high_share:%} ({time_low_freedom~time_high_freedom} degrees of freedom)].",
        "",
    ),
    "work.none": ("note", "[{groups}: ]No work was reported; all runs are assumed to have done the same work.", ""),
    "work.lacking": ("note", "[{groups}: ]Not all runs report {kinds}, so cells are not compared per unit of it.", ""),
    "work.kinds-differ": (
        "note",
        "[{groups}: ]Not all runs report the same kind of work, so cells are compared only within their line.",
        "",
    ),
    "work.whole": (
        "note",
        "[{groups}: ]{same} is the same in all runs, as requested; whole runs are compared, although their {kinds} differ.",
        "",
    ),
    "work.asked-for": (
        "note",
        f"[{{groups}}: ]Amounts of work differ: {PER_UNIT}, as requested.",
        '[To compare per {other}: per = "{other}" in a study file; sweep --write makes one.]',
    ),
    "work.differs": (
        "note",
        f"[{{groups}}: ]Amounts of work differ: {PER_UNIT}.",
        '[Amounts of {per} differ most. To compare per {other}: per = "{other}" in a study file; sweep --write makes one.]',
    ),
    "no-meter": ("note", "No power meter was read, so only times are compared.", ""),
    "energy-missing": ("note", "{missing} of {runs:run} have no energy; means are of the other runs.", ""),
    "meters-differ": (
        "note",
        "Not all runs were measured by the same devices, so the gain errors of the meters do not cancel in ratios.",
        "",
    ),
    "accuracy-unknown": (
        "note",
        "The accuracy of the meter is unknown, so no uncertainty of energies is given. Ratios of energies on one meter have one, from the repeats.",
        "",
    ),
    "estimates": (
        "note",
        "~ Energies of {estimated} of {cells:cell} are at least in part not measured, but estimated as load x rated power.",
        "",
    ),
    "different-data": (
        "warning",
        "! The runs did not use the same data ({data}).",
        "Differences may come from the data.",
    ),
    "different-data.pair": ("warning", "different data: {first}, {second}", ""),
    "warnings": (
        "note",
        "{warned} of {runs:run} have warnings: {doubts}.",
        "See the column doubts in slots.csv.",
    ),
    "warnings.tuned": (
        "note",
        "{warned} of {runs:run} have warnings: {doubts}.",
        "Write them to slots.csv: joulelab sweep --report",
    ),
    "unseen": (
        "note",
        "The sensors measure only a part of the time; uncertainties do not include a load that repeats at exactly the rate at which the sensors measure.",
        "Repeat each cell {repeats} times or more, or call joulelab.step() in the training loop.",
    ),
    "eds-is-half": (
        "note",
        "EDS(2) gain is always half of gain minus loss, so both columns rank the cells alike.",
        "",
    ),
    "simulated": ("note", "Simulated ({twins}): not a measurement.", ""),
    "other-twin": (
        "warning",
        "{runs:run} in this folder come from another version of the twin {twins}, so they do not count here: its file or the program has changed since.",
        "Run the study again to replace them.",
    ),
    "executor": ("note", "About the simulation: {remark}", ""),
}

COMPARISON_MESSAGES: dict[str, tuple[str, str, str]] = {
    "points-differ": (
        "note",
        "{first} and {second} were not measured at the same points; only the parts that both have are compared: {families}.",
        "",
    ),
    "simulated-differ": (
        "warning",
        "! {first} and {second} have different sources: {first} {first_source}; {second} {second_source}.",
        "",
    ),
    "data-differ": (
        "warning",
        "! {first} and {second} did not use the same data ({first}: {first_data}, {second}: {second_data}).",
        "Differences may come from the data.",
    ),
    "check-failed": ("warning", "{label} failed a check: {name}: {check}", ""),
    "same-devices": (
        "note",
        "Both runs were measured by the same meters, so the gain error of the meters cancels in the ratio.",
        "",
    ),
    "same-devices.groups": (
        "note",
        "All runs were measured by the same meters, so the gain error of the meters cancels in the ratio.",
        "",
    ),
    "different-devices": ("note", "Different devices were measured, so no error cancels in the ratio.", ""),
    "in-step": (
        "note",
        "If a load repeats at exactly the rate at which the sensors measure, the ratio B / A can be wrong by up to {share:%} of itself.",
        "",
    ),
    "one-run-group": (
        "note",
        "{name} has only one run, which is assumed to scatter like the runs of the other group.",
        "Repeat it to measure the spread.",
    ),
    "runs-not-succeeded": (
        "warning",
        "! Compared although not all runs succeeded: {names}.",
        "List the runs with their outcome: joulelab ls",
    ),
    "runs-shared": (
        "warning",
        "! Others used the node too, so these energies are not of the run alone: {names}.",
        "See the part of the run: joulelab show {run}",
    ),
    "work-lacking": ("note", "Not all runs report {kinds}, so they are not compared per unit of it.", ""),
    "runs-left-out": ("note", "{runs:run} left out: failed, stopped or still running.", ""),
    "runs-without-energy": ("note", "{runs:run} without a total energy, not counted.", "See why: joulelab show {run}"),
    "one-run-each": (
        "note",
        "Each has only one run, so the uncertainties do not include the spread between runs.",
        "Repeat both runs to measure the spread.",
    ),
    "gate-above": (
        "failed",
        "Above: the energy[ per {per}] is {change:+%} against the baseline ({low:+%} to {high:+%}), more than the limit of {limit:%}.",
        "Compare the runs in full[: joulelab compare {compared}]",
    ),
    "gate-above.possible": (
        "failed",
        "Above: the energy[ per {per}] is {change:+%} against the baseline ({low:+%} to {high:+%}), significantly more; a rise of {limit:%} is possible.",
        "Compare the runs in full[: joulelab compare {compared}]",
    ),
    "gate-not-above": (
        "note",
        "Not above: the energy[ per {per}] is {change:+%} against the baseline ({low:+%} to {high:+%}); a rise of {limit:%} is excluded.",
        "",
    ),
    "gate-undecided.repeats": (
        "warning",
        "Cannot decide: the energy[ per {per}] is {change:+%} against the baseline ({low:+%} to {high:+%}), neither significantly above it nor surely below a rise of {limit:%}.",
        "More runs, also of the baseline, narrow the interval.",
    ),
    "gate-undecided.one-run-each": (
        "warning",
        "Cannot decide: there is one run each, so the scatter between runs is unknown.",
        "Repeat at least one of them[: joulelab gate {again}]",
    ),
    "gate-undecided.meters": (
        "warning",
        "Cannot decide: the energy[ per {per}] is {change:+%} against the baseline ({low:+%} to {high:+%}); errors of different meters do not cancel, so more runs do not help.",
        "Measure the baseline again, with the same meters and devices.",
    ),
    "gate-undecided.accuracy": (
        "warning",
        "Cannot decide: the accuracy of a meter is unknown, and the baseline was not measured by the same device.",
        "Measure the baseline again, with the same meters and devices.",
    ),
    "gate-undecided.not-resolved": (
        "warning",
        "Cannot decide: the energy of the baseline is not resolved: its runs scatter too much, or are too short.",
        "Measure longer runs of it, or more of them.",
    ),
    "gate-undecided.scopes": (
        "warning",
        "Cannot decide: the runs did not measure the same devices[; not in all runs of the baseline: {lacking_baseline}][; not in all new runs: {lacking_new}].",
        "Measure both with the same devices. See which are found now: joulelab meters",
    ),
    "gate-undecided.no-energy": (
        "warning",
        "Cannot decide: not all runs have an energy that was measured at the same points.",
        "Look for the reason: joulelab meters",
    ),
    "gate-progress": (
        "note",
        "run {runs} of at most {at_most}[: {change:+%} against the baseline ({low:+%} to {high:+%})]",
        "",
    ),
}
