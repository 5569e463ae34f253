"""Old name of a module, to be deleted when `plan when` has dropped kept forecasts."""


def series_of(*_: str) -> str:
    """Return no name: series are not kept any more."""
    return ""
