"""Find the module that reads an entry: a meter, or an archive that is asked afterwards."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from joulelab.core.errors import ConfigError, JoulelabError
from joulelab.recorder.plan import find_module


def find_meter_module(meter: str) -> Any:
    """Return a module by its name, dotted path or file. Raises ConfigError with the nearest name, Unavailable."""
    inside = _find_builtin(meter)
    if inside is not None:
        return inside
    try:
        module = find_module(meter)
    except JoulelabError:
        raise
    except Exception as error:
        raise ConfigError(f"meter {meter} cannot be loaded", why=f"{type(error).__name__}: {error}") from error
    if not is_live(module) and not is_archive(module):
        why = "it has neither open_meter(config) nor open_archive(config)"
        raise ConfigError(f"{meter} is not a meter", why=why, next="name a meter that `joulelab meters` lists")
    return module


def is_builtin_meter(name: str) -> bool:
    """Return whether one of joulelab's own meters or archives has that name."""
    return _find_builtin(name) is not None


def _find_builtin(name: str) -> Any:
    if not name.isidentifier() or importlib.util.find_spec(f"joulelab.instruments.{name}") is None:
        return None
    module = importlib.import_module(f"joulelab.instruments.{name}")
    return module if is_live(module) or is_archive(module) else None


def is_live(module: Any) -> bool:
    """Return whether it is read while a run goes on."""
    return callable(getattr(module, "open_meter", None))


def is_archive(module: Any) -> bool:
    """Return whether it can be asked after a run."""
    return callable(getattr(module, "open_archive", None))


def is_usual(module: Any) -> bool:
    """Return whether a run opens it unless told otherwise."""
    return is_live(module) and bool(getattr(module, "DEFAULT", True))
