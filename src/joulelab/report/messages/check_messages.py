"""The messages of the checks of a run: code -> (status, text, next step)."""

# ruff: noqa: E501  one line is one text: easy to find and to edit

from __future__ import annotations

DOCTOR = "[joulelab doctor {doctor}]"
TEST_METERS = "joulelab doctor"
FIX_SOURCE = f"{DOCTOR}[correct {{column}} or its unit in the source, and import it again]"
CAP_STATUS = "joulelab cap status"
DISK = "make room on the disk; df -h shows which one is full"
METERS = "joulelab meters"
WALL_METER = "add a wall meter, which misses nothing; to see which kinds there are: joulelab meters"
SLOWED = "look for slowdowns that are `Active` and for the temperature: nvidia-smi -q -d PERFORMANCE,TEMPERATURE"

MESSAGES: dict[str, tuple[str, str, str]] = {
    # The record of the run.
    "damaged": (
        "failed",
        "{scope} is not as it was recorded: {what}[; no {withheld} is given]",
        "copy the run folder again from its origin",
    ),
    "ending.killed": (
        "warning",
        "joulelab was killed before the workload ended; the figures end at the last reading",
        "",
    ),
    "ending.live": ("note", "the run is still going on; these are the figures so far", ""),
    "ending.not-recorded": ("warning", "the workload ended, but its end could not be recorded completely", DISK),
    "recorder.died": ("warning", "the recorder died ({reason}) and was restarted", TEST_METERS),
    "recorder.stuck": ("warning", "the recorder did not answer at the end and was stopped", TEST_METERS),
    "paused": ("warning", "joulelab was stopped or delayed for {paused_s:s}; readings continued", ""),
    "disk": ("warning", "writing to the disk failed ({error}); {lost_rows:reading} lost", DISK),
    "clock-stepped": (
        "warning",
        "the UTC clock was stepped by {step_s:+s}; energies use monotonic time and are not affected",
        "",
    ),
    "interval": ("note, warning or failed", "begin or end of the run is not certain: {what}", "[{next}]"),
    "too-many-phases": (
        "warning",
        "{marked:phase} were marked; only {listed} are listed, the outermost and the first",
        "mark epochs as phases; for steps call joulelab.step()",
    ),
    "too-many-kinds": (
        "warning",
        "only the first {counted} kinds of work are counted; {reports:report} of other kinds left out",
        "use few names of work, always the same: joulelab.work(samples=64)",
    ),
    "open-phases": (
        "warning",
        "{names}: the phase has no end, although the workload ended normally; later marks may be missing",
        "use `with joulelab.phase(NAME):`, which closes the phase",
    ),
    "not-verifiable": (
        "note",
        "joulelab 0.1.0 recorded no file sizes, so it is unknown whether reports of work were deleted",
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
        "{scope}: the clocks differ by an unknown amount, so its energy may belong to another time",
        "check the clocks: chronyc tracking shows on each node how far its clock is off",
    ),
    "not-recorded.no-readings": (
        "failed",
        "{scope}: this node is part of the job, but its power was not read; totals do not include it",
        TEST_METERS,
    ),
    "not-recorded.no-record": (
        "failed",
        "{missing} of {nodes:node} of the job were not recorded; totals do not include them",
        "read why in nodes.log in the folder of the run",
    ),
    "recorder-lost.energy-missing": (
        "failed",
        "{scope}: nothing was read for {lost_s:s}, between {from_s:s} and {to_s:s} after the begin; the energy of this time is not measured",
        "measure again",
    ),
    "recorder-lost.counted": (
        "note",
        "{scope}: nothing was read for {lost_s:s}, between {from_s:s} and {to_s:s} after the begin; the counters continued, so no energy is missing",
        "",
    ),
    "joined-apart": (
        "note",
        "{scope}: its command began {late_s:s} after the first and ended {early_s:s} before the last; its energy and mean power are those of its own command, mean powers of sums are over the time of all nodes",
        "start the command on all nodes at the same time",
    ),
    "joined-failed": ("note", "{scope}: its command ended with {end}, that of another node with exit 0", ""),
    "joined-other-command": (
        "note",
        "{scope}: its command is not that of the first node: {command}",
        "join the runs of one job",
    ),
    # Meters.
    "power-meter": ("failed", "no power meter was read, so there is no energy", METERS),
    "not-read": ("failed", "{scope}: fewer than two readings[ by {meter}][ ({reason})], so it is in no total", DOCTOR),
    "not-read.covered": (
        "warning",
        "{scope}: fewer than two readings[ by {meter}][ ({reason})]; the figures are those of another meter",
        DOCTOR,
    ),
    "silent-meter": (
        "failed",
        "{scope}: the meter did not answer at the start; totals do not include what it measures",
        "joulelab doctor {scope}",
    ),
    "stuck-meter": (
        "warning",
        "{scope}: the meter did not answer for a while",
        "joulelab doctor {scope}",
    ),
    "late": ("note", "{scope}: {missed:reading} skipped, because the machine was busy or the meter is slow", ""),
    "gaps": (
        "warning or failed",
        "{scope}: no readings in {lost_share:%} of the time[ ({reason})][; {late_meter} opened late ({late_reason})]",
        DOCTOR,
    ),
    "slow-refresh": (
        "note",
        "{scope}: the meter has a new value every {found_s:s}, not every {stated_s:s}; the uncertainty includes this",
        "",
    ),
    "too-short": (
        "warning",
        "{scope}: the run is too short for {meter} ({edge_share:%} of the energy is in its first and last readings)",
        "[measure longer, or use {option}]",
    ),
    "estimate": ("warning", "{scope}: not measured, but estimated as load x rated power", METERS),
    "accuracy": ("note", "{scope}: the accuracy of the meter is unknown, so no uncertainty is given", ""),
    "meters-disagree": (
        "warning",
        "{scope}: {other_channel} of {other_meter} differs by {difference_share:+%} from {channel} of {meter}; only ± {uncertainty_share:%} is expected from their uncertainties",
        DOCTOR,
    ),
    "does-not-follow": (
        "failed",
        "{scope}: {meter} is not used: its power does not change with that of {against}, although it includes {against}",
        DOCTOR,
    ),
    "cords": (
        "failed",
        "{scope}: only {read} of {wanted} {part} inputs are read ({channel} of {meters}), so no sum is given",
        "add the other inputs; to see what is read now: joulelab meters",
    ),
    "impossible": (
        "failed",
        "{scope}: energy is negative by more than its uncertainty ({energy_j:J} ± {uncertainty_j:J}); a meter is wrong, or measures something else",
        "joulelab show RUN --scopes all",
    ),
    "supply-efficiency": (
        "warning or failed",
        "{scope}: the power supplies give {efficiency_share:%} of what {meter} measures at their input, which is impossible",
        DOCTOR,
    ),
    "source": ("note or warning", "{scope} reports a problem: {what}", ""),
    "unseen": (
        "note",
        "{scope}: the sensors measure {seen_share:%} of the time[; if the load repeats at exactly the rate at which the sensors measure, the error of {reach_of} can][ reach {reach_share:%}][ be more than {over_share:%}]",
        "[call {call} in the training loop][, or add a wall meter: {wall_meter}][take more steps: {enough_steps} are enough, {few_steps} so far][take more steps, or steps of another length: the {uneven_steps} known steps are not spread evenly over the period of the sensors]",
    ),
    "in-step.meter": (
        "warning",
        "{scope}: the sensors measure {seen_share:%} of the time, and another meter disagrees; the uncertainty includes what the sensors may have missed",
        WALL_METER,
    ),
    "in-step.steps": (
        "warning",
        "{scope}: the sensors measure {seen_share:%} of the time, and the load repeats at exactly their rate; the uncertainty includes what the sensors may have missed",
        WALL_METER,
    ),
    "counter-frozen": (
        "warning",
        "{scope}: the counter {channel} does not change; the energy is integrated from power instead",
        DOCTOR,
    ),
    "counter-reset": ("warning", "{scope}: the counter {channel} was reset during the run", ""),
    "counter-wrap": (
        "warning",
        "{scope}: during a gap in the readings, the counter {channel} may have passed its maximum and begun again at zero",
        DOCTOR,
    ),
    "idle-drifted": (
        "warning",
        "{scope}: idle power drifted by {drift_w:+W} while it was measured",
        "wait until the node has cooled, or use a longer --idle",
    ),
    # The accounting of a cluster.
    "accounting.no-job": (
        "failed",
        "{scope}: the accounting has no energy for this job[ ({reason})]",
        "look for AcctGatherEnergyType, which must not be none: scontrol show config",
    ),
    "accounting.no-step": ("note", "{scope}: the accounting has no energy for this step[ ({reason})]", ""),
    "accounting.no-energy": ("note", "{scope}: the accounting has no energy[ ({reason})]", ""),
    "accounting.unknown-nodes": ("note", "{scope}: not compared with our meters, because its nodes are unknown", ""),
    "accounting.no-meter": ("note", "{scope}: not compared with our meters, because none was read on {nodes}", ""),
    "accounting.not-covered": (
        "note",
        "{scope}: not compared with our meters, because it covers {covers}, which they do not measure on every node",
        "",
    ),
    "accounting.other-side": (
        "note",
        "{scope}: cannot be compared exactly with our meters, because it covers {covers} and they measure {ours}",
        "",
    ),
    "accounting.other-time": (
        "note",
        "{scope}: not compared with our meters, because they have no readings of that time",
        "",
    ),
    # Devices.
    "impossible-power.negative": (
        "warning or failed",
        "{scope}: {channel} of {meter} falls to {power_w:W}, so its energy is wrong",
        FIX_SOURCE,
    ),
    "impossible-power.too-high": (
        "warning or failed",
        "{scope}: {channel} of {meter} reaches {power_w:W}, more than the possible {most_w:W}, so its energy is wrong",
        FIX_SOURCE,
    ),
    "impossible-power.outlier": (
        "warning or failed",
        "{scope}: {channel} of {meter} reaches {power_w:W}, far from its median of {median_w:W}, so its energy is wrong",
        FIX_SOURCE,
    ),
    "impossible-power.wrong-unit": (
        "warning or failed",
        "{scope}: {meter} shows {power_w:W}, less than a {device} draws when idle; its unit is probably wrong",
        f"{DOCTOR}[if it is in kW, import it again with that unit: --map COLUMN={{column}}:kW header_units=false]",
    ),
    "throttled.power-cap": ("note", "{scope}: slowed down by the power cap in {share:%} of the readings", ""),
    "throttled.hardware-slowdown": (
        "warning",
        "{scope}: slowed down by the hardware in {share:%} of the readings",
        SLOWED,
    ),
    "throttled.software-thermal": (
        "warning",
        "{scope}: slowed down by the driver in {share:%} of the readings, because of heat",
        SLOWED,
    ),
    "throttled.hardware-thermal": (
        "warning",
        "{scope}: slowed down by the hardware in {share:%} of the readings, because of heat",
        SLOWED,
    ),
    "throttled.power-brake": (
        "warning",
        "{scope}: slowed down by the power brake of the system in {share:%} of the readings",
        SLOWED,
    ),
    "idle-gpus": (
        "note",
        "{scope}: idle all the time; they used {share:%} of the energy of the GPUs",
        "use them, or request a node with fewer GPUs",
    ),
    "hidden-gpus": (
        "note",
        "{scope}: hidden from the workload by CUDA_VISIBLE_DEVICES, but measured",
        "joulelab show RUN --scopes all",
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
        "keep the driver loaded, so that it keeps its caps: nvidia-smi -pm 1",
    ),
    "cap.overridden": (
        "failed",
        "{scope}: another program changed the cap from {cap_w:W} to {shown_w:W} during the run",
        CAP_STATUS,
    ),
    "cap.differs": (
        "warning or failed",
        "{scope}: in {share:%} of the readings a cap of {enforced_w:W} is in force, but {requested_w:W} was requested",
        "compare the requested and the current power limit: nvidia-smi -q -d POWER",
    ),
    "cap-not-enforced": ("failed", "{scope}: used {mean_w:W} on average, more than its cap of {cap_w:W}", CAP_STATUS),
    "cap.left": ("warning", "the original cap was not restored: {what}", CAP_STATUS),
    "cap.not-restored": (
        "warning",
        "the original cap could not be restored: {what}",
        "joulelab cap restore",
    ),
    "cap.released": (
        "failed",
        "the caps were restored before the run ended, because the process that keeps them received {signal}",
        "measure again",
    ),
    "cap.keeper-died": (
        "failed",
        "the process that keeps the caps died and could not be replaced: the caps were not in force until the end",
        CAP_STATUS,
    ),
    "keeper": (
        "warning",
        "the process that keeps the caps died; after {away_s:s} another one restored the original caps and set ours again",
        "",
    ),
}

# Why the lag of a stream was not corrected.
LAG_MESSAGES: dict[str, tuple[str, str, str]] = {
    "no-lag": ("note", "there is no visible lag", ""),
    "few-readings": ("note", "only {readings:reading}", ""),
    "constant-power": ("note", "the power did not change", ""),
    "other-load": ("note", "the two meters do not see the same load", ""),
    "open-end": ("note", "every lag up to ± {reach_s:s} fits equally well", ""),
    "wide": ("note", "the lag is only known to ± {half_width_s:s}", ""),
    "load-repeats": ("note", "the load repeats: a lag of {rival_s} s fits as well", ""),
}
