"""The notes beside the figures of a study and of a comparison: code -> (severity, text, next step)."""

# ruff: noqa: E501  one line is one text: easy to find and to edit

from __future__ import annotations

AS_IF = "cells are compared as if it were ± {assumed_share:%}"
PER_UNIT = "energy and time are compared per unit of {per}, EDP per unit squared"

MESSAGES: dict[str, tuple[str, str, str]] = {
    "no-results": ("note", "No cell has a result yet.", ""),
    "cells-missing": ("note", "No result for {missing} of {cells:cell}: {names}.", ""),
    "reference-missing": ("note", "The reference has no run[ for {names}]: no gain or loss is given there.", ""),
    "reference-unused": (
        "note",
        "{knobs} are not compared with each other: {value} in the reference has no effect.",
        "",
    ),
    "no-runs-here": (
        "note",
        "No runs here for {told} of {cells:cell}: number, mean and deviation are as published.",
        "",
    ),
    "warm-up": ("note", "{runs:warm-up run} stored, but not counted.", ""),
    "odd-runs": (
        "note",
        "Repeats that differ from the others of their cell, marked and still counted: {names}. By chance one of {chance} cells has one.",
        "",
    ),
    "not-capped": (
        "warning",
        "! The cap was not in force in {runs:run} of {names} ({first}); these cells are never named best.",
        "joulelab cap status shows why.",
    ),
    "reference-not-capped": (
        "warning",
        "! The cap of the reference was not in force ({names}): gains and losses against it are not reliable.",
        "joulelab cap status shows why.",
    ),
    "one-run-each": (
        "note",
        f"One run each: the spread between runs is unknown; {AS_IF}.",
        "Repeat them to measure it.",
    ),
    "one-run.pooled": ("note", "Only one run in {single} of {cells:cell}: the pooled spread is used for them.", ""),
    "one-run.unknown": (
        "note",
        f"Only one run in {{single}} of {{cells:cell}}: their spread is unknown; {AS_IF}.",
        "Repeat them to measure it.",
    ),
    "wide-cells": (
        "note",
        "{names}: runs differ significantly more than elsewhere, so their own spread counts (by chance one cell in {chance}).[ Fewer than {fewest} repeats show no outlier.]",
        "",
    ),
    "pooled.all": (
        "note",
        "Spread between runs, pooled over all cells:[ energy {energy_low_share~energy_high_share:%} ({energy_low_freedom~energy_high_freedom} degrees of freedom)][, time {time_low_share~time_high_share:%} ({time_low_freedom~time_high_freedom})].",
        "",
    ),
    "pooled.lines": (
        "note",
        "Spread between runs, pooled by line:[ energy {energy_low_share~energy_high_share:%} ({energy_low_freedom~energy_high_freedom} degrees of freedom)][, time {time_low_share~time_high_share:%} ({time_low_freedom~time_high_freedom})].",
        "",
    ),
    "pooled.rest": (
        "note",
        "For lines with few runs it is pooled over all cells:[ energy {energy_low_share~energy_high_share:%} ({energy_low_freedom~energy_high_freedom} degrees of freedom)][, time {time_low_share~time_high_share:%} ({time_low_freedom~time_high_freedom})].",
        "",
    ),
    "work.none": ("note", "[{groups}: ]No work was reported: all runs are assumed to have done the same.", ""),
    "work.lacking": ("note", "[{groups}: ]Not all runs report {kinds}: cells are not compared by it.", ""),
    "work.kinds-differ": (
        "note",
        "[{groups}: ]Not all runs report the same kind of work: cells are compared within their line only.",
        "",
    ),
    "work.whole": (
        "note",
        "[{groups}: ]{same} is equal in all runs, as requested: they are compared whole, although {kinds} differ.",
        "",
    ),
    "work.asked-for": (
        "note",
        f"[{{groups}}: ]Amounts of work differ: {PER_UNIT}, as requested.",
        "[--per {other} compares otherwise.]",
    ),
    "work.differs": (
        "note",
        f"[{{groups}}: ]Amounts of work differ: {PER_UNIT}.",
        "[{per} differ most; --per {other} compares otherwise.]",
    ),
    "no-meter": ("note", "No power meter was read: only times are compared.", ""),
    "energy-missing": ("note", "No energy in {missing} of {runs:run}: means are of the others.", ""),
    "meters-differ": (
        "note",
        "Not all runs were measured by the same devices: their gain errors do not cancel.",
        "",
    ),
    "accuracy-unknown": (
        "note",
        "The accuracy of the meter is unknown: energies have no interval; ratios on one meter have one from repeats.",
        "",
    ),
    "estimates": (
        "note",
        "~ Energies of {estimated} of {cells:cell} are estimates, at least in part: load x rated power, not measured.",
        "",
    ),
    "different-data": ("warning", "! The runs did not use the same data ({data}).", "Differences may come from that."),
    "warnings": (
        "note",
        "Warnings in {warned} of {runs:run}: {doubts}.",
        "See the column doubts in slots.csv.",
    ),
    "warnings.tuned": (
        "note",
        "Warnings in {warned} of {runs:run}: {doubts}.",
        "joulelab sweep --report writes them to slots.csv.",
    ),
    "unseen": (
        "note",
        "The sensors measure a part of the time; the intervals leave out a load in exact step with them.",
        "Repeat each cell {repeats} times or more, or call joulelab.step() in the training loop.",
    ),
    "eds-is-half": (
        "note",
        "The gain by EDS(2) is by algebra always half of gain minus loss: one piece of evidence, not two.",
        "",
    ),
    "simulated": ("note", "{twins}: nothing was measured there.", ""),
    "executor": ("note", "{remark}", ""),
}

COMPARISON_MESSAGES: dict[str, tuple[str, str, str]] = {
    "points-differ": (
        "note",
        "{first} and {second} were not measured at the same points; compared is what both have: {families}.",
        "",
    ),
    "simulated-differ": ("warning", "! Not alike: {first} {first_source}; {second} {second_source}.", ""),
    "data-differ": (
        "warning",
        "! {first} and {second} did not use the same data ({first}: {first_data}, {second}: {second_data}).",
        "Differences may come from that.",
    ),
    "check-failed": ("warning", "{label} failed a check: {name}: {check}", ""),
    "same-devices": (
        "note",
        "Both were measured by the same devices: their gain error is common and cancels in the ratio.",
        "",
    ),
    "different-devices": ("note", "Different devices were measured: nothing cancels in the ratio.", ""),
    "in-step": (
        "note",
        "If a load repeats exactly in step with the sensors, B / A can be off by up to {share:%}.",
        "",
    ),
    "one-run-each": (
        "note",
        "One run each: the intervals do not include the spread between runs.",
        "Repeat both to measure it.",
    ),
}
