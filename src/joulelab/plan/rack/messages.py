"""The messages of `joulelab plan rack`: from code to (status, text, next step)."""

_CAPS = "Give --gpus 8 --gpu-power 700W, or name runs with GPU readings."
_SWEEP = "Measure it: joulelab sweep --cap 400:700:100 -- COMMAND"

_WARNINGS = {
    "rack.no-node": (
        "Check the units: the rack allows {allowed_w:W}, a node draws {node_w:W}.",
        "If they are right, give a larger supply or a smaller margin.",
    ),
    "rack.simulated": (
        "The readings are simulated ({what}): they show the method, not your node.",
        "Name runs of your own nodes.",
    ),
    "rack.above-nameplate": (
        "A node drew {node_w:W}, more than its nameplate of {rated_w:W}.",
        "Correct --rated, or check the meter.",
    ),
    "rack.runs-capped": ("Every run was under {cap}.", "Keep it: without it nodes may draw more."),
}
_NOTES = {
    "rack.given-maximum": (
        "{power} is used as given: the error of its meter and hidden peaks are not included.",
        "Name the runs instead to include them.",
    ),
    "rack.errors-unknown": (
        "The upper end does not include: {names}.",
        "{advice}.",
    ),
    "rack.feeds-assumed": (
        "The capacity of the feeds assumes {names}.",
        "If that is wrong, fewer nodes may fit: give power_factor and node_phases of the rack in a plan file.",
    ),
    "rack.efficiency-assumed": (
        "Power behind the supplies is divided by an assumed efficiency of {efficiency:%}.",
        "Give efficiency of the node in a plan file, or measure at the wall.",
    ),
    "rack.percentiles-refused": (
        "Too few data for {names}: {blocks:independent block} of {block_s:s}, {needed} needed.",
        "Measure for {needed_s:s}[, in {runs_needed} runs, because runs differ], or plan by the maximum.",
    ),
    "rack.nameplate-only": ("No node was measured; most draw less than their nameplate.", "Name runs, or give --max."),
    "rack.height-unknown": ("The rack's height is not checked.", "Give height_u of the node."),
    "rack.runs-unread": (
        "Left out, because only the total energy is known: {names}.",
        "Name runs whose nodes were read while they ran.",
    ),
    "rack.caps-unknown": ("No cap for more nodes is computed. {why}", ""),
    "rack.other-work": (
        "Other work may draw more than the measured runs ({runs:run}, {observed_s:s} in total).",
        "Measure the job that draws most, or cap the GPUs: a cap holds for any work.",
    ),
    "rack.runs-left-out": ("{runs:run} under caps count only for the cost of caps.", ""),
    # Reasons of --why.
    "rack.why-rule": (
        "By the highest power measured or given, at its upper end (errors of meters, hidden peaks, other nodes).",
        "The nameplate holds for any work; if it allows more nodes, it decides.",
    ),
    "rack.limit": (
        (
            "[{watts:W} for nodes, from {from_w:W}][ x {continuous:%} load][ x power factor {factor}]"
            "[, {margin:%} kept free][, {others_w:W} for other devices][room for {room:node}]."
        ),
        "",
    ),
    "rack.why-feeds": ("Nodes load the feeds in proportion to the ratings of the feeds.[ Assumed: {names}.]", ""),
    "rack.why-draw": (
        "{nodes:node} draw up to {most_w:W}[, {mean_w:W} on average,] of {usable_w:W} for nodes.",
        "[{now:node} now leave {now_free:%} free by nameplate.]",
    ),
    "rack.why-row": (
        (
            "{node_w:W} per node: {nodes:node}[; {upper_w:W} with all known errors: {sure:node}]"
            "[; {value_w:W} between {low_w~high_w:W}, by {blocks:independent block} of {block_s:s}]"
            "[; above {allowed_w:W} in {share:%} of the time, at most {high:%}]."
        ),
        "[Measure for {needed_s:s} to support it fully.]",
    ),
    "rack.why-readings": ("{readings:reading} in {observed_s:s}, every {raw_s:s}.", ""),
    "rack.why-hidden": (
        "Readings every {from_s:s} may hide peaks[ of {factor} times the highest] ({source}).",
        "[{advice}]",
    ),
    "rack.why-unseen": ("Peaks shorter than {to_s:s} are not seen by these readings.", ""),
    "rack.why-spread": ("Another node may differ by {value:%} from the mean of these ({source}, k = 2).", "[{advice}]"),
    "rack.why-together": (
        "The peak of all {hosts:host} of run {run} together was {ratio:%} of the sum of their own peaks.",
        "",
    ),
    "rack.why-one-job": (
        "All nodes are assumed to run one job, with their peaks at the same time.",
        "If they run different jobs, add a mix of jobs to a plan file.",
    ),
    "rack.why-guarantee": (
        "Caps limit the GPUs; the rest of a node is {source}, the efficiency of the supplies is {efficiency}.",
        "A GPU may exceed its cap for a moment, until the cap acts.",
    ),
    "rack.why-cost": (
        "The cost of caps is {source}, for {lowest_w~highest_w:W}[, against a cap of {against_w:W}].",
        "[{advice}]",
    ),
    "rack.why-mix": (
        (
            "{names}: {mean_w:W} on average, up to {maximum_w:W}, {upper_w:W} with errors, of {allowed_w:W}; "
            "more than that in {share:%} of the time, at most {high:%}."
        ),
        "{draws} draws, seed {seed}; jobs are independent, unless they start together.",
    ),
    "rack.why-mix-percentile": ("{p} of the mix: {value_w:W}, between {low_w~high_w:W}.", ""),
    # Reasons why a rule or a cap has no answer.
    "rack.nameplate-unknown": ("The nameplate is unknown.", "Give --rated, or rated_w of the node."),
    "rack.maximum-unknown": ("No node was measured.", "Name runs, or give --max."),
    "rack.percentile-refused": (
        "{p} needs {needed} independent blocks; there are {blocks} of {block_s:s} in {observed_s:s}.",
        "Measure for {needed_s:s}[, in {runs_needed} runs, because runs differ].",
    ),
    "rack.gpus-unknown": ("The GPUs of a node are unknown.", _CAPS),
    "rack.host-unknown": ("The power besides the GPUs is unknown.", "Give host_w of the node, or --rated."),
    "rack.gpus-above-nameplate": (
        "{gpus:GPU} of {gpu_w:W} draw more than the nameplate of {rated_w:W}.",
        "Correct --rated or --gpu-power.",
    ),
    "rack.cap-limit-unknown": ("The highest cap of the GPUs is unknown.", "Give --gpu-power, or --cap."),
    "rack.cap-not-taken": ("GPUs of {gpu_w:W} accept caps from {lowest_w~gpu_w:W}.", "Give another --cap."),
    "rack.cost-unknown": ("The cost of caps is unknown[: {why}].", _SWEEP),
    "rack.cost-of-maximum": ("The cost of caps is unknown: no run drew as much as the maximum of {max_w:W}.", _SWEEP),
    "rack.host-too-high": ("No cap is low enough: the node without its GPUs may draw {host_w:W}.", ""),
    "rack.cap-too-low": (
        "No cap is low enough: it would be {cap_w:W}, but GPUs of {gpu_w:W} accept {lowest_w:W} or more.",
        "",
    ),
    "rack.cap-outside-figures": ("The effect of caps was measured from {lowest_w~highest_w:W} only.", _SWEEP),
}
MESSAGES: dict[str, tuple[str, str, str]] = {code: ("warning", *entry) for code, entry in _WARNINGS.items()} | {
    code: ("note", *entry) for code, entry in _NOTES.items()
}
