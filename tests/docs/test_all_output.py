"""Help pages, and the outputs that the documents show, keep the rules of output: `python -m tests.docs.all_output`."""

from __future__ import annotations

from tests.docs.all_output import find_violations, list_help
from tests.docs.test_docs import outputs
from tests.docs.tutorials import TUTORIALS, typed_in

WIDE = "x " * 41
BAD = {
    "wider": WIDE,
    "cut": "energy of python tra… is 5 kJ",
    "unknown uncertainty": "gpu:0  4.83 ± ? kJ\ngpu:1  4.91 ± ? kJ",
    "exponent": "energy     4.8e+03 ± 40 J",
    "prose": "note     it is slow\n         -> wait until it has cooled",
    "4 notes": "note a\nwarning b\nnote c\nfailed d",
}
GOOD = """energy     4.8 ± 0.4 kJ (± 8 %), 20261118-021632-7782 at 10.0.0.5/1e5
note     Add a wall meter:
         -> joulelab meters
joulelab: a message for a log is one line, however long it is: a terminal wraps it between its words
"""


def test_help_pages_and_outputs_in_the_documents_keep_the_rules() -> None:
    shown = [*list_help(), *((command, text) for _, command, text in outputs())]
    shown += [(typed.command, typed.shown) for page in TUTORIALS for typed in typed_in(page.read_text())]
    assert len(shown) > 60
    assert [f"{command}: {wrong}" for command, text in shown for wrong in find_violations(command, text)] == []


def test_what_breaks_a_rule_is_found() -> None:
    found = {
        rule: [wrong for wrong in find_violations("joulelab show", text) if rule in wrong] for rule, text in BAD.items()
    }
    assert [rule for rule, wrong in found.items() if len(wrong) != 1] == []
    assert find_violations("joulelab show", GOOD) == []
    assert find_violations("joulelab show --all", BAD["4 notes"]) == []
