"""Put back the caps that a killed joulelab left behind, at the next start. Imports nothing until there is something."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def put_back(environ: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Put back what was found before, where a keeper and its client were killed; `say` hears what became of it.

    Nothing here stops whoever starts joulelab.
    """
    from joulelab.control.leftover import has_leftovers

    if not has_leftovers(environ):
        return
    try:
        from joulelab.control.client import restore

        for each in restore(environ):
            say(each.said)
    except Exception as error:  # noqa: BLE001 the command that was typed matters more
        say(f"a cap that was left behind cannot be put back ({error}); sudo joulelab cap restore")
