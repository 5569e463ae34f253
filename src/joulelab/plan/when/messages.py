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
    "when.pause-ended": ("warning", "A pause ended early: the job was paused, and {why}.", ""),
    "when.pause-failed": ("warning", "The job ran on in a pause: {why}.", "Give a --checkpoint command instead."),
    "when.cap-failed": ("warning", "A cap of the plan was not set: {why}.", "See joulelab cap status."),
    "when.follow-failed": ("warning", "The plan was not followed to its end: {why}.", "Report this as a bug."),
    "when.not-measured": ("warning", "No meter measured the energy of the job.", "See joulelab meters."),
    "when.rate-unknown": (
        "note",
        "The cost is not known: the job ran at a time for which there is no rate.",
        "Give a series that goes beyond the deadline.",
    ),
}

MESSAGES: dict[str, tuple[str, str, str]] = {**RUN_MESSAGES}
