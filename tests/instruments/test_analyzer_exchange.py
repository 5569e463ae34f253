"""What is said to the instrument, word for word: pairs of sent and answered."""

from __future__ import annotations

import pytest

from joulelab.core.errors import ReadFailed, Unavailable
from joulelab.instruments.analyzer import setup
from joulelab.instruments.analyzer.kept import Kept


class Pairs:
    """Answer as was noted, and only to what was noted."""

    def __init__(self, *pairs):
        self.pairs = list(pairs)

    def write(self, text):
        sent, answer = self.pairs.pop(0)
        assert text == sent
        assert answer is None, f"{text} is answered"

    def query(self, text):
        sent, answer = self.pairs.pop(0)
        assert text == sent
        assert answer is not None, f"{text} is not answered"
        return answer

    def close(self):
        assert not self.pairs, f"not said: {self.pairs}"

    abandon = close


def talk_to(*pairs):
    link = Pairs(*pairs)
    return link, setup.Dialogue(link, "x", Kept(), 5.0)


def test_only_what_differs_is_set_and_all_of_it_is_put_back():
    link, talk = talk_to(
        (":COMM:HEAD?", ":COMM:HEAD 1"),
        (":COMM:HEAD 0", None),
        (":INP:VOLT:RANG?;:NUM:NORM:ITEM1?;:RATE?", "300.0E+00;U,1;1.00E+00"),
        (":NUM:NORM:ITEM1 P,1;:RATE 0.1", None),
        (":INTEG:STOP", None),
        (":INTEG:RES", None),
        (":RATE 1.00E+00", None),
        (":NUM:NORM:ITEM1 U,1", None),
        (":COMM:HEAD 1", None),
    )
    talk.ensure([(":COMM:HEAD", "0")])
    talk.ensure([(":INP:VOLT:RANG", "300"), (":NUM:NORM:ITEM1", "P,1"), (":RATE", "0.1")])
    talk.kept.started = True
    setup.put_back(link, talk.kept)
    link.close()


def test_one_by_one_where_questions_do_not_combine():
    link, talk = talk_to(
        (":INP:CFAC?;:INP:MODE?", "3"), (":INP:CFAC?", "3"), (":INP:MODE?", "RMS"), (":RATE?", "0.1"), (":HOLD?", "0")
    )
    assert talk.ask([":INP:CFAC", ":INP:MODE"]) == ["3", "RMS"]
    assert talk.ask([":RATE", ":HOLD"]) == ["0.1", "0"]
    link.close()


@pytest.mark.parametrize(("state", "started"), [("RES", True), ("STAR", False), ("STOP", False), ("TIM", False)])
def test_only_a_reset_integration_is_started(state, started):
    pairs = [
        (":INTEG:MODE?;:INTEG:TIM?", "NORM;1,0,0"),
        (":INTEG:TIM 0,0,0", None),
        (":INTEG:STAR", None),
        (":STAT:ERR?", '0,"NO ERROR"'),
    ]
    link, talk = talk_to(*(pairs if started else ()))
    known = setup.State(None, "", None, (1,), {}, False, 3, False, False, 0.1, state)
    assert setup.start_integration(talk, known) is started
    link.close()


def test_a_refused_setting_is_said():
    _, talk = talk_to((":STAT:ERR?", '813,"INVALID OPERATION DURING INTEGRATION"'))
    with pytest.raises(Unavailable, match="813: INVALID OPERATION") as raised:
        talk.check_errors()
    assert raised.value.next == "stop the integration that runs"


def test_setting_up_has_an_end():
    talk = setup.Dialogue(Pairs(), "x", Kept(), -1.0)
    with pytest.raises(ReadFailed, match="too long"):
        talk.ask([":RATE"])
