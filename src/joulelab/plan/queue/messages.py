"""The messages of `joulelab plan queue`: from code to (status, text, next step)."""

MESSAGES: dict[str, tuple[str, str, str]] = {
    "queue.simulated": (
        "warning",
        "Powers are simulated, not measured: {twins}.",
        "Measure a run on a real node: joulelab run -- COMMAND",
    ),
    "queue.processors-unknown": (
        "warning",
        "Each processor counts as a node, because the file states no MaxProcs and MaxNodes.",
        "Give the processors of a node: --processors 8",
    ),
    "queue.modelled-caps": (
        "note",
        "The effect of caps is modelled by other GPUs, not measured: {workloads}.",
        "Measure three caps: joulelab sweep --cap 400:700:150 -- COMMAND",
    ),
    "queue.margin": (
        "note",
        "Powers are uncertain: the budget is exceeded in {share:%} of draws, by {most_w:W} at the 95th percentile.",
        "Keep a margin: --margin {margin}%",
    ),
    "queue.no-accuracy": (
        "note",
        "The accuracy of the powers is not known, so energies have no interval.",
        "State it: --accuracy 2%",
    ),
    "queue.file-title": ("note", "The file of jobs states: {title}", ""),
    "queue.left-out": (
        "note",
        "Left out:[, {not_run:job} that did not run][, {unfinished:unfinished job}][, {parts:part} of jobs].",
        "",
    ),
    "queue.assumed-power": (
        "note",
        "{jobs:job} without a power count with {node_w:W} per node (--node-w).",
        "",
    ),
    "queue.mean-powers": (
        "note",
        "Highest powers are not known, so mean powers count against the budget: short peaks may exceed it.",
        "Add a column highest_w, or give a --margin.",
    ),
    "queue.below-idle": (
        "warning",
        "An unused node draws {idle_w:W}, more than a node of {jobs:job} (job {job}: {node_w:W}).",
        "Check --idle and the powers.",
    ),
    "queue.never-capped": (
        "note",
        "Never capped, as no run shows the effect of caps: {workloads}.",
        "Name runs at several caps, or give --gpus and --gpu-power.",
    ),
    "queue.no-response": ("note", "{workload}: never capped: {error}", ""),
    "queue.never-starts": (
        "note",
        "{policy}: job {job} never starts. It needs {needed_w:W} beyond idle; an empty site has {room_w:W}.",
        "",
    ),
    "queue.capped-runs": ("note", "{runs:run} under caps are not jobs: they show the effect of caps.", ""),
    "queue.even-spread": ("note", "{runs:run} with only a total energy count with their mean power.", ""),
    "queue.not-wall": (
        "warning",
        "Not measured at the wall, but behind the power supplies or only in parts of the node: {runs:run}.",
        "Give a budget for the same parts, or measure at the wall: joulelab meters",
    ),
    "queue.idle-measured": ("note", "An unused node draws {idle_w:W}, measured before the runs ({count:host}).", ""),
}
