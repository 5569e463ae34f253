"""State the version of joulelab."""

__version__ = "0.1.1"
