"""Ask the system's keyring for a secret."""

from __future__ import annotations

from joulelab.core.errors import ConfigError, MissingDependency


def secret(service: str, user: str) -> str | None:
    """Return a secret, None where there is none. Raises MissingDependency, ConfigError where no keyring answers."""
    try:
        import keyring
        import keyring.errors
    except ImportError as error:
        then = "pip install 'joulelab[keyring]'"
        raise MissingDependency("the package keyring is not installed", why=str(error), next=then) from error
    try:
        found: str | None = keyring.get_password(service, user)
    except keyring.errors.KeyringError as error:
        then = "unlock it, or use { env = ... } or { file = ... }"
        why = type(error).__name__
        raise ConfigError("the keyring does not answer", why=why, next=then, code="config.keyring") from error
    return found
