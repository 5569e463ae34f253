"""The messages of `joulelab plan` about when: from code to (status, text, next step)."""

MESSAGES: dict[str, tuple[str, str, str]] = {}
