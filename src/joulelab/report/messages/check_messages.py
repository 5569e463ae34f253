"""The messages of the checks of a run: code -> (severity, text, next step)."""

# ruff: noqa: E501  one line is one text: easy to find and to edit

from __future__ import annotations

DOCTOR = "[joulelab doctor {doctor}]"
FIX_SOURCE = f"{DOCTOR}[correct {{column}} or its unit in the source, and import it again]"
CAP_STATUS = "joulelab cap status"
WALL_METER = "add a wall meter: joulelab meters"
SLOWED = "nvidia-smi -q -d PERFORMANCE,TEMPERATURE"

MESSAGES: dict[str, tuple[str, str, str]] = {
    # The record of the run.
    "damaged": ("failed", "{scope}: {what}[; no {withheld} is given]", "copy the run folder again from its origin"),
    "ending.killed": (
        "warning",
        "joulelab was killed before the workload ended; the figures end at the last reading",
        "",
    ),
    "ending.live": ("note", "the run is still going on; these are the figures so far", ""),
    "ending.not-recorded": ("warning", "the workload ended, but its end could not be recorded completely", "df -h"),
    "recorder.died": ("warning", "the recorder died ({reason}) and was restarted", "joulelab doctor"),
    "recorder.stuck": ("warning", "the recorder did not answer at the end and was stopped", "joulelab doctor"),
    "paused": ("warning", "joulelab was stopped or delayed for {paused_s:s}; readings continued", ""),
    "disk": ("warning", "writing to the disk failed ({error}); lost: {lost_rows:reading}", "df -h"),
    "clock-stepped": (
        "warning",
        "the UTC clock was stepped by {step_s:+s}; energies use monotonic time and are not affected",
        "",
    ),
    "interval": ("note, warning or failed", "{what}", "[{next}]"),
    "too-many-phases": (
        "warning",
        "{marked:phase} were marked; only the {listed} outermost and first are listed",
        "mark epochs, and call joulelab.step() for steps",
    ),
    "too-many-kinds": (
        "warning",
        "only the first {counted} kinds of work are counted; left out: {reports:report}",
        "give each kind of work one name: joulelab.work(samples=64)",
    ),
    "open-phases": (
        "warning",
        "{names}: never closed, although the workload ended normally; later marks may be missing",
        "use `with joulelab.phase(NAME):`, which closes the phase",
    ),
    "not-verifiable": (
        "note",
        "joulelab 0.1.0 recorded no file sizes: reports of work that were deleted cannot be noticed",
        "",
    ),
    "quality": (
        "warning",
        "{scope}: not a number (nan), so the quality of the work is unknown",
        "check the output of the workload",
    ),
    # Several nodes.
    "clocks": (
        "failed",
        "{scope}: its clock cannot be joined with the clock of the run, so its energy may be of another time",
        "chronyc tracking",
    ),
    "not-recorded.no-readings": (
        "failed",
        "{scope}: part of the job, but without power readings; totals do not include it",
        "joulelab doctor",
    ),
    "not-recorded.no-record": (
        "failed",
        "{missing} of {nodes:node} of the job were not recorded; totals do not include them",
        "see nodes.log in the run's folder",
    ),
    "recorder-lost.energy-missing": (
        "failed",
        "{scope}: nothing was read for {lost_s:s}, between {from_s:s} and {to_s:s}; the energy there is not measured",
        "measure again",
    ),
    "recorder-lost.counted": (
        "note",
        "{scope}: nothing was read for {lost_s:s}, between {from_s:s} and {to_s:s}; the counters continued, so no energy is missing",
        "",
    ),
    # Meters.
    "power-meter": ("failed", "no power meter was read, so there is no energy", "joulelab meters"),
    "not-read": ("failed", "{scope}: fewer than two readings, so no total includes it", DOCTOR),
    "silent-meter": (
        "failed",
        "{scope}: did not answer when it was opened; totals do not include what it measures",
        "joulelab doctor {scope}",
    ),
    "stuck-meter": ("warning", "{scope}: did not answer for a while", "joulelab doctor {scope}"),
    "late": ("note", "{scope}: {missed:reading} skipped; the machine was busy, or the meter is slow", ""),
    "gaps": (
        "warning or failed",
        "{scope}: no readings in {lost_share:%} of the time[ ({reason})][; {late_meter} opened late ({late_reason})]",
        DOCTOR,
    ),
    "too-short": (
        "warning",
        "{scope}: the run is short for {meter} ({edge_share:%} of the energy lies at its edges)",
        "[measure longer, or use {option}]",
    ),
    "estimate": ("warning", "{scope}: load x rated power, not measured", "joulelab meters"),
    "accuracy": ("note", "{scope}: the accuracy is unknown, so no interval is given", ""),
    "meters-disagree": (
        "warning",
        "{scope}: {other_channel} of {other_meter} differs by {difference_share:+%} from {channel} of {meter}; their combined uncertainty is ± {uncertainty_share:%}",
        DOCTOR,
    ),
    "does-not-follow": (
        "failed",
        "{scope}: {meter} does not follow the load of {against}, which it includes, so it is not used",
        DOCTOR,
    ),
    "cords": (
        "failed",
        "{scope}: only {read} of {wanted} {part} inputs are read ({channel} of {meters}), so there is no sum",
        "joulelab meters",
    ),
    "impossible": (
        "failed",
        "{scope}: negative beyond its interval ({energy_j:J} ± {uncertainty_j:J}); a meter is wrong, or covers something else",
        "joulelab show RUN --scopes",
    ),
    "source": ("note or warning", "{scope}: {what}", ""),
    "unseen": (
        "note",
        "{scope}: the sensors measure {seen_share:%} of the time[; if the load repeats exactly in step with them, the error can reach {reach_share:%}]",
        "[call {call} in the training loop][, or add a wall meter: {wall_meter}][take more steps: {enough_steps} would do, {few_steps} are known][take more steps, or of another length: the {uneven_steps} known ones are not spread evenly]",
    ),
    "in-step.meter": (
        "warning",
        "{scope}: the sensors measure {seen_share:%} of the time, and another meter disagrees; the interval includes what they may have missed",
        WALL_METER,
    ),
    "in-step.steps": (
        "warning",
        "{scope}: the sensors measure {seen_share:%} of the time, and the load keeps step with them; the interval includes what they may have missed",
        WALL_METER,
    ),
    "counter-frozen": ("warning", "{scope}: {channel} does not change; power is integrated instead", DOCTOR),
    "counter-reset": ("warning", "{scope}: {channel} was reset during the run", ""),
    "counter-wrap": ("warning", "{scope}: a gap is long enough for {channel} to wrap unnoticed", DOCTOR),
    "idle-drifted": (
        "warning",
        "{scope}: idle power drifted by {drift_w:+W} while it was measured",
        "wait until the node has cooled, or use a longer --idle",
    ),
    # The accounting of a cluster.
    "accounting.no-job": ("failed", "{scope}: the accounting has no energy for this job[ ({reason})]", ""),
    "accounting.no-step": ("note", "{scope}: the accounting has no energy for this step[ ({reason})]", ""),
    "accounting.no-energy": ("note", "{scope}: the accounting has no energy[ ({reason})]", ""),
    "accounting.unknown-nodes": ("note", "{scope}: not compared with our meters, because its nodes are unknown", ""),
    "accounting.no-meter": ("note", "{scope}: not compared with our meters, because none was read on {nodes}", ""),
    "accounting.not-covered": (
        "note",
        "{scope}: not compared with our meters, because it covers {covers}, which they do not have on every node",
        "",
    ),
    "accounting.other-side": (
        "note",
        "{scope}: cannot be compared exactly with our meters, because it covers {covers} and ours {ours}",
        "",
    ),
    "accounting.other-time": ("note", "{scope}: not compared with our meters, because no reading is of that time", ""),
    # Devices.
    "impossible-power.negative": (
        "warning or failed",
        "{scope}: {channel} of {meter} falls to {power_w:W}, so its energy is wrong",
        FIX_SOURCE,
    ),
    "impossible-power.too-high": (
        "warning or failed",
        "{scope}: {channel} of {meter} reaches {power_w:W}, more than {most_w:W}, so its energy is wrong",
        FIX_SOURCE,
    ),
    "impossible-power.outlier": (
        "warning or failed",
        "{scope}: {channel} of {meter} reaches {power_w:W} where its median is {median_w:W}, so its energy is wrong",
        FIX_SOURCE,
    ),
    "impossible-power.wrong-unit": (
        "warning or failed",
        "{scope}: {meter} shows {power_w:W}, less than a {device} draws when idle; its unit is probably wrong",
        f"{DOCTOR}[if it is in kW, import it again with that unit: --map COLUMN={{column}}:kW]",
    ),
    "throttled.power-cap": ("note", "{scope}: slowed down by its power cap in {share:%} of the readings", ""),
    "throttled.hardware-slowdown": (
        "warning",
        "{scope}: slowed down by its hardware in {share:%} of the readings",
        SLOWED,
    ),
    "throttled.software-thermal": (
        "warning",
        "{scope}: slowed down by the driver in {share:%} of the readings, because it is hot",
        SLOWED,
    ),
    "throttled.hardware-thermal": (
        "warning",
        "{scope}: slowed down by its hardware in {share:%} of the readings, because it is hot",
        SLOWED,
    ),
    "throttled.power-brake": (
        "warning",
        "{scope}: slowed down by the power brake of the system in {share:%} of the readings",
        SLOWED,
    ),
    "idle-gpus": (
        "note",
        "{scope}: idle all the time, {share:%} of the energy of the GPUs",
        "use them, or request a node with fewer GPUs",
    ),
    "hidden-gpus": (
        "note",
        "{scope}: hidden from the workload by CUDA_VISIBLE_DEVICES, but measured",
        "joulelab show RUN --json lists every scope",
    ),
    "other-processes": (
        "warning",
        "{scope}: also used by {processes:other process} (PID {pids})",
        "run it again while no other process uses the device",
    ),
    # Power caps.
    "cap.changed": ("warning", "{scope}: the cap changed during the run, between {low_w:W} and {high_w:W}", CAP_STATUS),
    "cap.vanished": (
        "failed",
        "{scope}: the cap of {cap_w:W} was lost during the run; the device returned to its default of {shown_w:W}",
        "nvidia-smi -pm 1 keeps the driver loaded, and its caps",
    ),
    "cap.overridden": (
        "failed",
        "{scope}: another program changed the cap from {cap_w:W} to {shown_w:W} during the run",
        CAP_STATUS,
    ),
    "cap.differs": (
        "warning or failed",
        "{scope}: {enforced_w:W} is enforced, {requested_w:W} was requested, in {share:%} of the readings",
        "nvidia-smi -q -d POWER",
    ),
    "cap-not-enforced": ("failed", "{scope}: {mean_w:W} on average, above the cap of {cap_w:W}", CAP_STATUS),
    "cap.left": ("warning", "{what}", CAP_STATUS),
    "cap.not-restored": ("warning", "{what}", CAP_STATUS),
    "cap.released": (
        "failed",
        "the caps were restored before the end, because the keeper received {signal}",
        "run it again",
    ),
    "cap.keeper-died": (
        "failed",
        "the keeper of the caps died and could not be replaced: the caps were not in force until the end",
        CAP_STATUS,
    ),
    "keeper": (
        "warning",
        "the keeper of the caps died; after {away_s:s} another one restored the original caps and set ours again",
        "",
    ),
}

# Why the lag of a stream was not corrected.
LAG_MESSAGES: dict[str, tuple[str, str, str]] = {
    "no-lag": ("note", "no lag is seen", ""),
    "few-readings": ("note", "only {readings:reading}", ""),
    "constant-power": ("note", "the power did not change", ""),
    "other-load": ("note", "the two meters do not see the same load", ""),
    "open-end": ("note", "every lag up to ± {reach_s:s} fits", ""),
    "wide": ("note", "lags within ± {half_width_s:s} fit equally well", ""),
    "load-repeats": ("note", "the load repeats: a lag of {rival_s} s fits as well", ""),
}
