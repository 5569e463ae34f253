"""Turn codes and numbers into English: one catalogue of messages, which `joulelab messages` prints.

A catalogue is a dictionary from code to (status, text, next step). Texts have fields:

    {scope} {meter}          a name that the check gives; a list of names is shortened
    {mean_w:W} {lost_s:s}    a number in SI units, written with its unit; also J and %, and with a sign: +W +s +%
    {stated_w:=W}            a number with seven digits and a unit, for small differences
    {missed:reading}         a count with its noun: `1 reading`, `12 readings`
    {low_w~high_w:W}         a range; one value where both are equal
    [, in {share:%}]         an optional part: left out where a check does not give one of its fields

The next step is a command, a sentence, or a sentence that ends in a colon and a command: `Make room: df -h`. Commands
can be pasted. `{run}` is the name of the run where it is known, else RUN.

Apps and instrument families may have a `messages.py` of their own with a dictionary `MESSAGES` in this format.
"""

from joulelab.report.messages.catalogue import COMPARISON, Message, list_messages
from joulelab.report.messages.wording import (
    WordedCheck,
    add_next_step,
    join_next_step,
    set_command_apart,
    word_check,
    word_checks,
    word_lag,
    word_note,
    word_notes,
)

__all__ = [
    "COMPARISON",
    "Message",
    "WordedCheck",
    "add_next_step",
    "join_next_step",
    "list_messages",
    "set_command_apart",
    "word_check",
    "word_checks",
    "word_lag",
    "word_note",
    "word_notes",
]
