"""The messages of `joulelab plan` about when: from code to (status, text, next step)."""

# Of a run that followed a plan (`plan when --run`).
RUN_MESSAGES: dict[str, tuple[str, str, str]] = {
    "when.after-plan": (
        "warning",
        "The job was not finished at the end of the plan; it went on without a cap.",
        "Plan with a longer --duration, or name this run as the job.",
    ),
    "when.ended-late": (
        "note",
        "The job ended {difference_s:s} after the planned end.",
        "Name this run as the job of the next plan: its time is measured.",
    ),
    "when.ended-early": (
        "note",
        "The job ended {difference_s:s} before the planned end; the rest of the plan was not needed.",
        "Name this run as the job of the next plan: its time is measured.",
    ),
    "when.pause-ended": ("warning", "A pause ended early: the job was paused, and {why}.", "joulelab show last"),
    "when.pause-failed": ("warning", "The job ran on in a pause: {why}.", "Give a --checkpoint command instead."),
    "when.cap-failed": ("warning", "A cap of the plan was not set: {why}.", "joulelab cap status"),
    "when.follow-failed": ("warning", "The plan was not followed to its end: {why}.", "Report this as a bug."),
    "when.not-measured": ("warning", "No meter measured the energy of the job.", "joulelab meters"),
    "when.rate-unknown": (
        "note",
        "The cost is not known: the job ran at a time for which there is no rate.",
        "Give a series that goes beyond the deadline.",
    ),
}

_SWEEP = "Measure three caps: joulelab sweep --cap 400:700:100 -- COMMAND"

# Of the plan itself.
_PLAN_WARNINGS = {
    "when.simulated": ("The job was measured on a simulation (twin {twin}).", "Name runs of your own nodes."),
    "when.gap": (
        "The solver ran out of time: a plan that costs up to {share:%} less may exist.",
        "Give longer slots (--slot 1h), or fewer caps (--cap).",
    ),
    "when.idle-above-work": (
        "A node draws more in pauses ({idle_w:W}) than at work ({work_w:W}); one of the two is wrong.",
        "Correct --idle or --power.",
    ),
}
_PLAN_NOTES = {
    "when.idle-assumed": (
        "The idle power is assumed: {share:%} of the power at work, as in public logs of 8xH100 servers.",
        "Give --idle, or measure it: joulelab run --idle 60 -- COMMAND",
    ),
    "when.off-pays": (
        "A node in a pause draws {share:%} of its power at work. If it were off, the result would be {cost}.",
        "Let others use the node in pauses, then give --choose pauses-off.",
    ),
    "when.caps-left-out": (
        "With caps by the slot the result would be {cost}, but by a model of other GPUs; the plan does not use it.",
        _SWEEP,
    ),
    "when.lowest-cap": (
        "The best cap is the lowest that is known, {cap_w:W}.",
        "A lower one may cost less: measure it.",
    ),
    "when.average": (
        "By average intensity your own account improves; the emissions of the grid may not fall.",
        "Use marginal intensity to estimate the change of the grid.",
    ),
    "when.marginal": ("Marginal intensity is an estimate of its source; it cannot be measured.", ""),
    "when.forecast": ("The rate is a forecast; its error is not included.", "Plan again when a newer one is issued."),
    "when.one-run": ("One run: the spread between runs is not included.", "Name repeats of the run as well."),
    "when.mean-of-runs": ("The job is the mean of {runs:run}; their spread is included.", ""),
    "when.constant-power": (
        "The power is assumed to be constant: the job has another duration or power than its run.",
        "",
    ),
    "when.other-nodes": ("Power is scaled from {hosts:node} to {nodes:node}, with the same duration.", ""),
    "when.side-dc": ("Measured behind the supplies: their losses are not included.", "Measure at the wall."),
    "when.side-parts": ("Only parts of the nodes were measured; the rest is not included.", "Give --power."),
    "when.side-unknown": ("It is unknown on which side of the supplies the energy was accounted.", ""),
    "when.caps": ("Effect of caps: {what}.", ""),
    "when.node-waits": ("The node idles from now until the job starts; its idle energy is counted.", ""),
    "when.node-free": (
        "Until the job starts, its node is assumed to be off or used by others, so its idle energy is not counted.",
        "Give --waits to count it as idle.",
    ),
    "when.pue": ("The cost includes a PUE of {pue}; the energy does not.", ""),
    "when.intervals": ("± is k = 2, of energy, idle power and caps; the error of the rate is not included.", ""),
    "when.why-job": ("Job {name}: {work_s:s} at {power_w:W} on {nodes:node}, {idle_w:W} in pauses ({source}).", ""),
    "when.why-rate": ("Rate: {name}, with {slots:slot} of different rates until {deadline}. Times are in {zone}.", ""),
    "when.why-rule": (
        (
            "The plan is the cheapest way in which the node stays reserved (idle in pauses) and the effect of caps was "
            "measured. A simpler way is preferred if it costs at most 0.1 % more."
        ),
        "Give --choose to take another way.",
    ),
    "when.why-solver": ("Pauses and caps are solved by HiGHS; the largest gap to the optimum is {gap:%}.", ""),
}

MESSAGES: dict[str, tuple[str, str, str]] = {
    **RUN_MESSAGES,
    **{code: ("warning", *words) for code, words in _PLAN_WARNINGS.items()},
    **{code: ("note", *words) for code, words in _PLAN_NOTES.items()},
}
