"""The messages of `joulelab verify` on figures of others, and on standards: code -> (status, text, next step)."""

from __future__ import annotations

FIX_LINE = "Correct or remove the line before you use the file"
LOOK_AT_LINE = "Look at the lines of the file before you add them up"
ASK = "Ask the submitter, or leave the result out"

MESSAGES: dict[str, tuple[str, str, str]] = {
    # CodeCarbon's emissions.csv.
    "codecarbon.cell": ("failed", "{scope}: {text} in {column} is no number or time that can be used", FIX_LINE),
    "codecarbon.no-energy": ("failed", "{scope}: energy_consumed is empty", FIX_LINE),
    "codecarbon.no-duration": ("failed", "{scope}: duration is empty or 0", FIX_LINE),
    "codecarbon.sum": (
        "failed",
        "{scope}: GPU, CPU and memory add up to {parts_j:J}, but energy_consumed states {total_j:J}",
        FIX_LINE,
    ),
    "codecarbon.unit": (
        "failed",
        "{scope}: energy / duration is {mean_w:W}, its power {power_w:W}: {column} seems to be in {unit}, not in kWh",
        FIX_LINE,
    ),
    "codecarbon.impossible": (
        "failed",
        "{scope}: energy / duration is {mean_w:W}; no such part has more than {most_w:W}",
        FIX_LINE,
    ),
    "codecarbon.zero-power": ("failed", "{scope}: energy / duration is {mean_w:W}, but its power is 0", FIX_LINE),
    "codecarbon.power": (
        "warning or failed",
        "{scope}: energy / duration is {mean_w:W}, but its power is {power_w:W}",
        "The duration of {duration_s:s} may be wrong, or that of the last task only",
    ),
    "codecarbon.rate": (
        "failed",
        "{scope}: emissions / duration is {found:=mg/s}, but emissions_rate states {stated:=mg/s}",
        FIX_LINE,
    ),
    "codecarbon.intensity": (
        "failed",
        "{scope}: emissions / energy is {g_per_kwh} g/kWh, more than any grid has",
        FIX_LINE,
    ),
    "codecarbon.low-intensity": (
        "warning",
        "{scope}: emissions / energy is {g_per_kwh:=g/kWh}; grids have 10 g/kWh or more",
        "The energy may be in Wh, or the emissions in t",
    ),
    "codecarbon.intensities": (
        "warning",
        "{scope}: rows have {low~high} g/kWh; CodeCarbon uses one figure for a country",
        LOOK_AT_LINE,
    ),
    "codecarbon.pue": ("note", "{scope}: its energies include a PUE of {pue}", ""),
    "codecarbon.duplicate": (
        "failed",
        "{scope} is the same as line {line}: a sum counts it twice",
        "Remove one of the lines before you add them up",
    ),
    "codecarbon.stage": (
        "note",
        "{scope} is a stage of line {line}, which includes it (CodeCarbon's flush): do not add them",
        "",
    ),
    "codecarbon.falls": ("failed", "{scope} is a stage of line {line}, but has more energy", LOOK_AT_LINE),
    "codecarbon.order": ("warning", "{scope}: it ended {back_s:s} before the line above it", LOOK_AT_LINE),
    "codecarbon.overlap": (
        "warning",
        "{scope} ran {overlap_s:s} at the same time as line {line} on this machine: each counts the energy of both",
        LOOK_AT_LINE,
    ),
    "codecarbon.constant": ("note", "{scope} has {power_w:W} in all {rows:row}: an estimate, not a measurement", ""),
    # A power submission of MLPerf.
    "mlperf.too-few": ("failed", "the analyzer's log has {readings:reading}", ASK),
    "mlperf.rate": ("ok or failed", "{readings:reading}, one every {step_s:s} (required: one a second)", ASK),
    "mlperf.order": ("failed", "{readings:reading} not later than the one before", ASK),
    "mlperf.gaps": (
        "ok or failed",
        "{gaps:gap} in the timed part[, {lost_s:s} in all, the longest {longest_s:s}]",
        ASK,
    ),
    "mlperf.no-window": (
        "failed",
        "power_begin or power_end is missing, or they are in the wrong order: the timed part is not known",
        ASK,
    ),
    "mlperf.window": ("ok or failed", "readings have to cover the timed part of {duration_s:s}", ASK),
    "mlperf.duration": (
        "ok or failed",
        "the timed part has {duration_s:s}; the load generator was asked to run for {least_s:s} at least",
        ASK,
    ),
    "mlperf.session": (
        "ok or failed",
        "the timed part begins {before_s:s} after the session does, and ends {after_s:s} before it",
        ASK,
    ),
    "mlperf.clocks": (
        "ok or failed",
        "clocks of server and client differ by at most {apart_s:s} (allowed: {most_s:s})",
        ASK,
    ),
    "mlperf.log-clock": (
        "ok or failed",
        "the readings have to lie in the testing session[; the furthest is {outside_s:s} outside of it]",
        ASK,
    ),
    "mlperf.samples": ("ok or failed", "PTDaemon counted {stated:reading}, the log has {found}", ASK),
    "mlperf.mean": ("ok or failed", "PTDaemon states a mean of {stated_w:=W}, the log gives {found_w:=W}", ASK),
    "mlperf.range": (
        "ok or failed",
        "PTDaemon states {low_w~high_w:=W}, the log has {found_low_w~found_high_w:=W}",
        ASK,
    ),
    "mlperf.uncertainty": (
        "ok or failed",
        "an uncertainty of at most {most:%} is allowed[; PTDaemon states {share:%}]",
        ASK,
    ),
    "mlperf.channels": ("ok or warning", "the channels differ from their sum by at most {share:%}", ASK),
    "mlperf.product": (
        "ok or failed",
        "power is {share:%} of volts x amperes x power factor (allowed difference: {most:%})",
        ASK,
    ),
    "mlperf.stuck": ("warning", "{equal:reading} in turn are {watts:=W}: the analyzer may have been stuck", ASK),
    "mlperf.summary": (
        "ok or failed",
        "{scope}: {detail:=} in mlperf_log_detail.txt, {summary:=} in mlperf_log_summary.txt",
        ASK,
    ),
    "mlperf.analyzer": ("ok or failed", "the analyzer is {model}", ASK),
    "mlperf.ranging": ("ok or failed", "a ranging run first, then fixed ranges", ASK),
    "mlperf.validity": ("ok or failed", "the load generator calls the result {validity}", ASK),
    "mlperf.changed": ("failed", "{scope} is not the file whose SHA-1 the controller recorded", ASK),
    "mlperf.unchanged": ("note", "{files:file} as recorded (SHA-1)", ""),
    "mlperf.no-controller": (
        "warning",
        "{scope} of the power controller is not here: its figures cannot be compared with the readings",
        "Ask the submitter for {scope}",
    ),
    "mlperf.unreadable": ("failed", "{scope} of the power controller cannot be read", ASK),
    "mlperf.absent": ("note", "{files:file} not here, so not checked: {names}", ""),
}

# Comparisons in an emissions.csv.
COMPARISONS = {
    "sum": "parts with total energy",
    "power": "energy with power",
    "rate": "emissions with their rate",
    "intensity": "emissions with energy",
}

# Aspects of standards, and what the next level needs.
ASPECTS = {
    "sampling": "sampling",
    "time": "share of the run",
    "machine": "share of machine",
    "subsystems": "subsystems",
    "point": "measured at",
    "wall": "at the wall",
    "second": "one reading a second",
    "whole": "whole timed part",
    "analyzer": "accepted analyzer",
    "ptdaemon": "PTDaemon, ranging",
}
NEEDS = {
    "meter": "a meter: joulelab meters",
    "counter": "an energy counter, which integrates all the time",
    "second": "a reading each second: --period 1s",
    "readings": "ten readings or more",
    "minute": "a run of a minute or more",
    "gaps": "readings all the time",
    "idle": "idle power: --idle 60s",
    "machine-nodes": "the size of the machine: --machine-nodes N",
    "all-nodes": "all nodes",
    "eighth": "an eighth of the nodes, 15 nodes, and 10 kW",
    "tenth": "a tenth of the nodes, 15 nodes, and 2 kW; or 40 kW",
    "network": "network and storage, measured or estimated",
    "node": "the whole node: a wall meter",
    "upstream": "a meter before the power supplies",
    "analyzer": "a power analyzer: docs, how-to/analyzer.md",
    "ptdaemon": "MLPerf's own programs drive the analyzer",
}
# What a level depends on, and a run does not record.
CONDITIONS = {
    "whole-machine": "these nodes are the whole machine",
    "network": "the network between the nodes is measured or estimated",
    "losses": "the losses of the power supplies are added",
}
