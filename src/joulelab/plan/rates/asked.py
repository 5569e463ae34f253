"""Old name of a module, to be deleted when `plan when` has dropped kept forecasts."""


def is_service(word: str) -> bool:  # noqa: ARG001
    """Return False: series are not kept any more."""
    return False
