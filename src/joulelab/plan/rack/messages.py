"""The messages of `joulelab plan` about rack: from code to (status, text, next step)."""

MESSAGES: dict[str, tuple[str, str, str]] = {}
