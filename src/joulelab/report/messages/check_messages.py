"""The messages of the checks of a run: code -> (status, text, next step)."""

# ruff: noqa: E501  one line is one text: easy to find and to edit

from __future__ import annotations

DOCTOR = "[joulelab doctor {doctor}]"
TEST_METERS = "joulelab doctor"
FIX_SOURCE = f"{DOCTOR}[Correct {{column}} or its unit in the source, and import it again]"
CAP_STATUS = "joulelab cap status"
DISK = "Free space on the disk that is full: df -h"
METERS = "joulelab meters"
WALL_METER = "Add a wall meter, which measures all of the time: joulelab meters"
SLOWED = "Look at the temperature, and for slowdowns that are Active: nvidia-smi -q -d PERFORMANCE,TEMPERATURE"

MESSAGES: dict[str, tuple[str, str, str]] = {
    # The record of the run.
    "damaged": (
        "failed",
        "{scope} has changed since it was recorded: {what}[; no {withheld} is given]",
        "Copy the run folder from its origin again, then check it: joulelab verify {run}",
    ),
    "ending.killed": (
        "warning",
        "joulelab was killed before the workload ended; the figures end when it was last seen running",
        "",
    ),
    "ending.live": ("note", "the run has not ended; these are the figures so far", ""),
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
    "limit.reached": (
        "note",
        "the limit of {limit}[ in {phase}] was reached after {reached_s:s}[: {then}]",
        "",
    ),
    "limit.unseen": (
        "warning",
        "the command ended with {used_j:J}, above its limit of {limit}, before the next reading of its energy",
        "Limits are looked at from about a second after the start, then each second or more often",
    ),
    "limit.unwatched": (
        "warning",
        "the command ended with {used_j:J}, above its limit of {limit}, while the limit could not be watched",
        TEST_METERS,
    ),
    "limit.no-phase": (
        "warning",
        "no phase named {phase} began, so nothing was counted for its limit of {limit}[; phases of this run: {names}]",
        "Give --stop-at the name of a phase that the command marks",
    ),
    "limit.lost": (
        "warning",
        "the limit of {limit} was not watched for some time: a meter gave no readings",
        TEST_METERS,
    ),
    "interval": ("note, warning or failed", "the start or the end of the run is uncertain: {what}", "[{next}]"),
    "too-many-phases": (
        "warning",
        "the workload marked {marked:phase}; only {listed} are listed: the outermost ones, then the first ones",
        "Mark epochs as phases, and call joulelab.step() for steps",
    ),
    "too-many-kinds": (
        "warning",
        "the workload reported too many kinds of work; only the first {counted} are counted, {reports:report} left out",
        "Use a few fixed names of work, such as samples or tokens, in joulelab.work()",
    ),
    "open-phases": (
        "warning",
        "{names}: the phase has no end, although the workload ended normally; later marks may be missing, too",
        "Use `with joulelab.phase(NAME):`, which ends the phase",
    ),
    "not-verifiable": (
        "note",
        "joulelab 0.1.0 recorded no file sizes, so it is unknown whether reports of work were deleted",
        "",
    ),
    "quality": (
        "warning",
        "{scope} is not a number (nan), so the quality of the work is unknown",
        "Check the output of the workload",
    ),
    # Several nodes.
    "clocks": (
        "failed",
        "{scope}: its clock differs from the others by an unknown time, so its energy may be of another time",
        "Check the clock on each node: chronyc tracking",
    ),
    "not-recorded.no-readings": (
        "failed",
        "{scope}: this node is part of the job, but its power was not read; totals do not include it",
        TEST_METERS,
    ),
    "not-recorded.no-record": (
        "failed",
        "{missing} of {nodes:node} of the job were not recorded; totals do not include them",
        "The file nodes.log in the folder of the run has the reason",
    ),
    "recorder-lost.energy-missing": (
        "failed",
        "{scope}: no readings for {lost_s:s}, from {from_s:s} to {to_s:s} after the start; the energy of this time is missing",
        "Measure again",
    ),
    "recorder-lost.counted": (
        "note",
        "{scope}: no readings for {lost_s:s}, from {from_s:s} to {to_s:s} after the start; the counters continued, so no energy is missing",
        "",
    ),
    "joined-apart": (
        "note",
        "{scope}: its command started {late_s:s} after the first and ended {early_s:s} before the last; its own figures cover its command only, mean powers of sums cover the time of all nodes",
        "Start the command on all nodes at the same time",
    ),
    "joined-failed": ("note", "{scope}: its command ended with {end}, the command of another node with exit 0", ""),
    "joined-other-command": (
        "note",
        "{scope} ran another command than the first node: {command}",
        "Join only the runs of one job",
    ),
    # Meters.
    "power-meter": ("failed", "no power meter was read, so there is no energy", METERS),
    "not-read": (
        "failed",
        "{scope}: fewer than two readings[ by {meter}][ ({reason})], so totals do not include it",
        DOCTOR,
    ),
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
        "{scope}: the meter did not answer for some time",
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
        "{scope}: the run is too short for {meter}: its start and end alone add an uncertainty of {edge_share:%}",
        "[Measure longer, or use {option}]",
    ),
    "estimate": ("warning", "{scope}: not measured, but estimated as load x rated power", METERS),
    "estimate.imported": (
        "warning",
        "{scope}: the tool that wrote the file estimates it, or does not state that it was measured",
        "to measure it: joulelab run -- COMMAND",
    ),
    "does-not-add-up.power": (
        "warning",
        "{scope}: energy / time is {mean_w:W} in the file, but its powers add up to {power_w:W}; the duration of {duration_s:s} may be that of the last task only",
        "do not use the mean power of this run",
    ),
    "does-not-add-up.sum": (
        "warning",
        "{scope}: the devices in the file add up to {parts_j:J}, but it states {total_j:J} in all; the devices are used",
        "compare both in the file",
    ),
    "included.overhead": (
        "note",
        "{scope}: the total in the file includes {overhead_w:W} per node that it assumes, and a PUE of {pue}; this run includes neither",
        "",
    ),
    "included.pue": (
        "note",
        "{scope}: energies in the file include a PUE of {pue}; they are divided by it here",
        "to set the PUE of your site: joulelab site --pue 1.2",
    ),
    "accuracy": ("note", "{scope}: the accuracy of the meter is unknown, so no uncertainty is given", ""),
    "meters-disagree": (
        "warning",
        "{scope}: {other_channel} of {other_meter} differs by {difference_share:+%} from {channel} of {meter}; only ± {uncertainty_share:%} is expected from their uncertainties",
        DOCTOR,
    ),
    "does-not-follow": (
        "failed",
        "{scope}: {meter} is not used, because its power does not follow the power of {against}, which is a part of it",
        DOCTOR,
    ),
    "cords": (
        "failed",
        "{scope}: only {read} of {wanted} {part} inputs are read ({channel} of {meters}), so no sum is given",
        "Add the missing inputs; these are read now: joulelab meters",
    ),
    "impossible": (
        "failed",
        "{scope}: the energy is negative ({energy_j:J}) by more than its uncertainty, so a meter is wrong or measures another part",
        "joulelab show {run} --scopes all",
    ),
    "supply-efficiency": (
        "warning or failed",
        "{scope}: the output of the power supplies is {efficiency_share:%} of their input by {meter}, which is impossible",
        DOCTOR,
    ),
    "source": ("note or warning", "{scope} reports a problem: {what}", ""),
    "unseen": (
        "note",
        "{scope}: the sensors measure {seen_share:%} of the time[; if the load repeats at exactly the rate at which the sensors measure, the error of {reach_of} can][ reach {reach_share:%}][ be more than {over_share:%}]",
        "[Call {call} in the training loop][, or add a wall meter: {wall_meter}][Take more steps: {enough_steps} are enough, the run has {few_steps}][Take more steps, or steps of another length: the {uneven_steps} known steps do not cover the period of the sensors evenly]",
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
    "counter-reset": (
        "warning",
        "{scope}: the counter {channel} was reset during the run[; what it counted in {lost_s:s} around that is missing]",
        "",
    ),
    "counter-wrap": (
        "warning",
        "{scope}: during a gap in the readings, the counter {channel} may have passed its maximum and begun again at zero",
        DOCTOR,
    ),
    "idle-drifted": (
        "warning",
        "{scope}: idle power drifted by {drift_w:+W} while it was measured",
        "Wait until the node has cooled, or use a longer --idle",
    ),
    # The accounting of a cluster.
    "accounting.no-job": (
        "failed",
        "{scope}: the accounting has no energy for this job[ ({reason})]",
        "AcctGatherEnergyType must not be none; look at it: scontrol show config",
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
        f"{DOCTOR}[If it is in kW, import it again with --map COLUMN={{column}}:kW header_units=false]",
    ),
    "throttled.power-cap": (
        "note",
        "{scope}: slowed down by the power cap in {share:%} of the readings",
        f"To see the cap that is in force: {CAP_STATUS}",
    ),
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
        "{scope}: idle during the whole run, with {share:%} of the energy of all GPUs",
        "Use them, or request a node with fewer GPUs",
    ),
    "hidden-gpus": (
        "note",
        "{scope}: hidden from the workload by CUDA_VISIBLE_DEVICES, but measured",
        "joulelab show {run} --scopes all",
    ),
    "other-processes": (
        "warning",
        "{scope}: also used by {processes:other process} (PID {pids})",
        "Run it again while no other process uses the device",
    ),
    "other-processes.server": (
        "note",
        "{scope}: used by {processes:process} outside the run (PID {pids}): the server, if nothing else runs there",
        "",
    ),
    "shared-node": (
        "note",
        "of the node's {node_j:J}[ ({covers})], this run: {energy_j:J} ({low_j~high_j:J}); others used it too, idle power is divided equally",
        "",
    ),
    "shared-node.elsewhere": (
        "note",
        "of the node's {node_j:J}, the part of this run is not known: {program} starts its processes outside of the run, where they look like those of others",
        "If nothing else ran on the node, all of it is the run's; else measure the container: joulelab agent",
    ),
    "shared-node.accounted": (
        "note",
        "of the node's {node_j:J}, this job: [{energy_j:J} by CPU time, ]{reserved_j:J} by reserved CPUs; {jobs:other job} used it too, and the accounting cannot bound its part",
        "Use --exclusive, or measure on the node: joulelab run -- CMD",
    ),
    # Power caps.
    "calibration.old": (
        "note",
        "{scope}: the calibration of {date} is {years:year} old, so the interval is wider",
        "Check it against the reference again: joulelab calibrate --check --reference METER",
    ),
    "calibration.driver": (
        "note",
        "{scope}: the calibration of {date} was made with another driver, so the interval is wider",
        "Check it against the reference again: joulelab calibrate --check --reference METER",
    ),
    "calibration.temperature": (
        "note",
        "{scope}: the calibration of {date} was made at {cold_c} to {hot_c} degC, the run was at {celsius} degC, so the interval is wider",
        "Calibrate at the temperature of your runs: joulelab calibrate --reference METER",
    ),
    "calibration.load": (
        "note",
        "{scope}: the calibration of {date} was made up to {seen_w:W}, the run reached {high_w:W}, so the interval is wider",
        "Calibrate with a higher load: joulelab calibrate --reference METER",
    ),
    "calibration.unusable": (
        "note",
        "a stored calibration has values of {devices:device} that cannot be used; the assumed errors count instead",
        "Calibrate again: joulelab calibrate --reference METER",
    ),
    "calibration.not-used": (
        "note",
        "{scope}: the calibration of {date} is not used: it is too old, of another model or channel, from another temperature, or from much lower loads",
        "Calibrate again: joulelab calibrate --reference METER",
    ),
    "cap.changed": ("warning", "{scope}: the cap changed during the run, between {low_w:W} and {high_w:W}", CAP_STATUS),
    "cap.vanished": (
        "failed",
        "{scope}: the cap of {cap_w:W} was lost during the run; the device returned to its default of {shown_w:W}",
        "Keep the driver loaded, so that caps stay: sudo nvidia-smi -pm 1",
    ),
    "cap.overridden": (
        "failed",
        "{scope}: another program changed the cap from {cap_w:W} to {shown_w:W} during the run",
        CAP_STATUS,
    ),
    "cap.differs": (
        "warning or failed",
        "{scope}: in {share:%} of the readings a cap of {enforced_w:W} is in force, but {requested_w:W} was requested",
        "Compare the requested with the current power limit: nvidia-smi -q -d POWER",
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
        "the caps were restored before the run ended, because the keeper of caps received {signal}",
        "Measure again",
    ),
    "cap.keeper-died": (
        "failed",
        "the keeper of caps died and could not be replaced, so the caps were not in force until the end",
        CAP_STATUS,
    ),
    "keeper": (
        "warning",
        "the keeper of caps died; after {away_s:s} another keeper restored the original caps and set ours again",
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
