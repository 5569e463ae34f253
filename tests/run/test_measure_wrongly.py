"""measure() and measured used wrongly are refused, and no run begins; as decorators they work however written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import joulelab
from joulelab.core.errors import ConfigError
from joulelab.run import measure as measuring
from joulelab.run import session

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Model:
    pass


def train() -> str:
    return "done"


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Take the options of each run that would begin; begin none."""
    found: list[Any] = []

    def join(options: Callable[[], Any], *, warm: bool) -> tuple[None, bool]:
        assert warm
        found.append(options())
        return None, False

    monkeypatch.setenv("JOULELAB_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(measuring, "join_session", join)
    return found


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda: joulelab.measure(5), "name of a measurement must be text.*it is 5"),
        (lambda: joulelab.measure(b"x"), "must be text"),
        (joulelab.measure("x"), "None cannot be measured.*not a function"),
        (lambda: joulelab.measure("x")(train()), "'done' cannot be measured"),
        (lambda: joulelab.measure(Model), "class Model cannot be measured.*decorate its methods"),
        (lambda: joulelab.measure("x")(Model), "class Model cannot be measured"),
        (lambda: joulelab.measured(Model), "class Model cannot be measured"),
        (lambda: joulelab.measured("x")(Model), "class Model cannot be measured"),
        (lambda: joulelab.measured(5), "5 cannot be measured"),
        (lambda: joulelab.measured("x", name="y"), "two names, 'x' and 'y'"),
        (lambda: joulelab.measured(period_s=0), "period_s is 0; give a number of seconds above 0"),
        (lambda: joulelab.measure(period_s="fast"), "period_s is 'fast'"),
        (lambda: joulelab.measure(idle_s=-1), "idle_s is -1; give a number of seconds of 0 or more"),
        (lambda: joulelab.measure(meters="nvml"), r"meters=\['nvml'\]"),
        (lambda: joulelab.measure(labels=5), "labels is 5"),
        (lambda: joulelab.measure(runs=5), "runs is 5; give a folder"),
        (lambda: joulelab.measure("p", meters=5), "meters is 5; give names or tables"),
        (lambda: joulelab.measure("p", meters=["rapl", 5]), "give names or tables"),
        (lambda: joulelab.measure(meters=[5]), r"meters is \[5\]; give names or tables"),
        (lambda: joulelab.measure(meters=[{"config": {}}]), "give names or tables"),
        (lambda: joulelab.measure(meters={"meter": "nvml"}), "give names or tables"),
        (lambda: joulelab.measure(tail_s=float("inf")), "tail_s is inf"),
        (lambda: joulelab.measure("x").energy, "nothing was measured yet; write `with"),
        (lambda: joulelab.begin(5), r"name of a measurement must be text \(it is 5\); write `joulelab.begin"),
        (lambda: joulelab.begin(train), "begin\\(\\) takes a name, not a function"),
        (lambda: joulelab.begin(idle_s=-1), "idle_s is -1"),
        (joulelab.end, "no measurement is open; call `joulelab.begin"),
    ],
)
def test_wrong_use_is_refused_and_no_run_begins(begun: list[Any], use: Callable[[], object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        use()
    assert begun == []


class StartedRecorder:
    """Stand for the recorder that is started while the options of a run are made."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def kill(self) -> None:
        self.calls.append("kill")

    def close(self) -> None:
        self.calls.append("close")


@pytest.mark.parametrize(
    ("meters", "said"),
    [
        (["nope"], "there is no meter 'nope'; .*valid: .*nvml"),
        (["rapl", "nope"], "there is no meter 'nope'"),
        (["rpal"], "there is no meter 'rpal'; did you mean 'rapl'"),
        (["file"], "file is not read during a run"),
        ([{"meter": "rpal"}], "there is no meter 'rpal'; did you mean 'rapl'"),
    ],
)
def test_a_name_that_no_meter_has_is_refused_and_no_run_begins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, meters: list[Any], said: str
) -> None:
    recorder = StartedRecorder()
    monkeypatch.setattr(session, "start_recorder", lambda *_, **__: recorder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("JOULELAB_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs"
    for begin in (
        joulelab.measure("p", meters=meters, runs=runs).__enter__,
        lambda: joulelab.begin("p", meters=meters),
    ):
        with pytest.raises(ConfigError, match=said):
            begin()
    assert recorder.calls == ["kill", "close"] * 2
    assert not runs.exists()
    with pytest.raises(ConfigError, match="no measurement is open"):
        joulelab.end()


def test_a_configuration_that_cannot_be_loaded_refuses_no_name(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("our fault")

    monkeypatch.setattr("joulelab.run.config.configuration.load_config", fail)
    choice = measuring._choose_meters(measuring._load_configuration(), ["pdu1", "rapl"])
    assert [lost.meter for lost in choice.lost] == ["configuration", "pdu1"]
    assert choice.meters == [{"meter": "rapl"}, {"meter": "host"}]
    (record,) = caplog.records
    assert "pdu1 is not read: the configuration cannot be loaded" in record.getMessage()
    assert "(RuntimeError: our fault)" in record.getMessage()


def test_an_unknown_option_is_refused_where_it_is_written() -> None:
    with pytest.raises(TypeError, match="nope"):
        joulelab.measured(nope=1)(train)


@pytest.mark.parametrize(
    ("decorated", "name"),
    [
        (lambda: joulelab.measured(train), "train"),
        (lambda: joulelab.measured()(train), "train"),
        (lambda: joulelab.measured("training")(train), "training"),
        (lambda: joulelab.measured(name="training")(train), "training"),
        (lambda: joulelab.measure(train), "train"),
        (lambda: joulelab.measure()(train), "train"),
        (lambda: joulelab.measure("training")(train), "training"),
    ],
)
def test_every_call_of_a_decorated_function_is_measured(
    begun: list[Any], decorated: Callable[[], Callable[[], str]], name: str
) -> None:
    function = decorated()
    assert begun == []
    assert (function(), function()) == ("done", "done")
    assert [options.name for options in begun] == [name, name]
    assert function.__name__ == "train"


class Trainer:
    @joulelab.measured
    @staticmethod
    def scale(x: int) -> int:
        return 2 * x

    @joulelab.measured("naming")
    @classmethod
    def name(cls, x: int) -> tuple[str, int]:
        return cls.__name__, x

    @joulelab.measure
    @classmethod
    def count(cls) -> str:
        return cls.__name__

    @joulelab.measure("halving")
    @staticmethod
    def halve(x: int) -> int:
        return x // 2

    @staticmethod
    @joulelab.measured
    def double(x: int) -> int:
        return 2 * x


def test_static_and_class_methods_are_measured_in_either_order_of_decorators(begun: list[Any]) -> None:
    class Own(Trainer):
        pass

    assert (Trainer().scale(3), Trainer.scale(4)) == (6, 8)
    assert (Own().name(1), Trainer.name(2), Own.count()) == (("Own", 1), ("Trainer", 2), "Own")
    assert (Trainer().halve(4), Trainer.double(5)) == (2, 10)
    names = ["Trainer.scale"] * 2 + ["naming"] * 2 + ["Trainer.count", "halving", "Trainer.double"]
    assert [options.name for options in begun] == names
    assert Trainer.scale.measurement.ended
    assert Own.name.measurement.ended


def test_begin_and_end_measure_like_with_blocks_inside_each_other(begun: list[Any]) -> None:
    outer = joulelab.begin("outer")
    inner = joulelab.begin("inner")
    assert joulelab.end() is inner
    assert (inner.ended, outer.ended) == (True, False)
    assert joulelab.end() is outer
    assert [options.name for options in begun] == ["outer", "inner"]
    with pytest.raises(ConfigError, match="no measurement is open"):
        joulelab.end()
