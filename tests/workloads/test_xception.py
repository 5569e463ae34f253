from __future__ import annotations

import functools

import pytest

from joulelab.core.errors import ConfigError
from joulelab.run.workload_registry import merge_parameters
from joulelab.workloads import xception_birds
from joulelab.workloads.training import training_parameters

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.system


@pytest.fixture
def one_thread():
    found = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(found)


def given(**changed):
    return merge_parameters("xception-birds", xception_birds.PARAMETERS, xception_birds.PRESETS["smoke"] | changed)


def parameters(model):
    return sum(p.numel() for p in model.parameters())


def test_parameters_and_flop_are_those_of_keras():
    from joulelab.workloads.models.xception import Xception
    from joulelab.workloads.training.model_figures import count_model

    with torch.device("meta"):
        whole = Xception(1000)
        assert parameters(whole) == 22_855_952
        assert sum(b.numel() for b in whole.buffers() if b.ndim) == 54_528
        assert parameters(Xception(69)) == 20_948_333
        assert parameters(Xception(69, top="512")) == 21_891_437
    for pixels, forward in ((299, 16.715e9), (71, 1.106e9)):
        picture = torch.empty(1, 3, pixels, pixels, device="meta")
        counts = count_model(lambda: Xception(1000), functools.partial(_given, picture), _summed)
        assert counts.forward == pytest.approx(forward, rel=5e-4)
        # Each convolution is done once forward and twice backward, but the first, whose images need no gradient.
        assert counts.training == pytest.approx(3 * forward, rel=0.01)


def _given(picture, device):
    assert device.type == "meta"
    return picture


def _summed(model, batch):
    return model(batch).sum()


def test_the_paper_is_the_default_and_its_sizes_are_its_own(monkeypatch):
    from joulelab.workloads.data import birds

    asked = {}
    monkeypatch.setattr(birds, "open_birds", lambda data, sizes: asked.update(data=data, sizes=sizes))
    monkeypatch.setenv("WORLD_SIZE", "8")
    task = xception_birds.task(merge_parameters("xception-birds", xception_birds.PARAMETERS, {}))
    sizes = asked["sizes"]
    assert (asked["data"], sizes.classes, sizes.images, sizes.count("valid"), sizes.pixels) == (
        "auto", 69, 10_000, 345, 299,
    )  # fmt: skip
    assert (task.epochs, task.batch, task.prefetch) == (5, 256, 2)
    assert task.facts == {
        "weights": "random", "base": "trained", "top": "one", "middle": 8, "pixels": 299, "classes": 69,
        "paper_accuracy": 0.98,
    }  # fmt: skip


def test_the_command_has_every_parameter_and_wrong_ones_are_refused(monkeypatch):
    needed = []
    monkeypatch.setattr(training_parameters, "require_libraries", lambda _, *libraries: needed.extend(libraries))
    words = xception_birds.command(given())
    assert needed == ["torch", "PIL"]
    assert words[1:3] == ["-m", "joulelab.workloads.xception_birds"]
    assert {word.partition("=")[0] for word in words[3:]} == set(xception_birds.PARAMETERS)
    for wrong in ({"top": "two"}, {"base": "pretrained"}, {"pixels": "70"}, {"rate": "fast"}, {"classes": "1"}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            xception_birds.command(given(**wrong))


@pytest.mark.usefixtures("one_thread")
def test_a_tiny_one_learns_birds_and_its_weights_can_be_read_again(tmp_path):
    task = xception_birds.task(given(data="synthetic-memory", middle="0", pixels="71", images="24"))
    torch.manual_seed(0)
    model = task.model()
    optimizer, schedule = task.optimizer(model, 4)
    batch = next(iter(torch.utils.data.DataLoader(task.data.train, batch_size=4)))
    losses = []
    for _ in range(4):
        loss = task.loss(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert schedule is None
    assert losses[-1] < 0.5 * losses[0]
    assert task.quality(task.score(task.forward(model, batch), batch))["accuracy"] >= 0.75

    file = tmp_path / "model.pt"
    torch.save(model.state_dict(), file)
    again = xception_birds.task(
        given(data="synthetic-memory", middle="0", pixels="71", weights=str(file), base="frozen", top="512")
    )
    _a_frozen_base_stays(again, model, batch)
    _what_does_not_fit_is_refused(file, tmp_path)


def _a_frozen_base_stays(task, trained, batch):
    model = task.model().train()
    with torch.device("meta"):
        assert parameters(task.model()) == parameters(model)  # weights are not read to count
    before = {key: value.clone() for key, value in model.base.state_dict().items()}
    assert all(bool((value == trained.base.state_dict()[key]).all()) for key, value in before.items())
    top = [p.detach().clone() for p in model.top.parameters()]
    optimizer, _ = task.optimizer(model, 1)
    task.loss(model, batch).backward()
    optimizer.step()
    assert all(bool((value == before[key]).all()) for key, value in model.base.state_dict().items())
    assert all(bool((p != q).any()) for p, q in zip(model.top.parameters(), top, strict=True))


def _what_does_not_fit_is_refused(file, tmp_path):
    from joulelab.workloads.models.xception import Xception, load_weights

    model = Xception(4, middle=1)
    with pytest.raises(ConfigError, match=r"these are not its weights \(they do not fit at"):
        load_weights(model, file)
    (tmp_path / "text.pt").write_text("not weights")
    with pytest.raises(ConfigError, match="cannot read the weights"):
        load_weights(model, tmp_path / "text.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ConfigError, match="these are not its weights"):
        load_weights(model, tmp_path / "list.pt")
    with pytest.raises(ConfigError, match="there is no such file of weights"):
        load_weights(model, tmp_path / "none.pt")


@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore")
def test_keras_gives_the_same_features_from_the_same_weights(tmp_path, monkeypatch):
    import numpy as np

    monkeypatch.setenv("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras")
    from joulelab.workloads.models.xception import Xception, load_weights

    theirs = keras.applications.Xception(weights=None, include_top=False, input_shape=(96, 96, 3))
    random = np.random.default_rng(0)
    for layer in theirs.layers:
        if "_bn" in layer.name or layer.name.startswith("batch_normalization"):
            layer.set_weights([np.abs(random.normal(1, 0.2, w.shape)) for w in layer.get_weights()])
    theirs.save_weights(tmp_path / "their.weights.h5")
    theirs.save(tmp_path / "their.keras")
    pixels = random.uniform(-1, 1, (2, 96, 96, 3)).astype(np.float32)
    expected = keras.ops.convert_to_numpy(theirs(pixels))
    for file in ("their.weights.h5", "their.keras"):
        ours = Xception(69).eval()
        load_weights(ours, tmp_path / file)
        with torch.no_grad():
            found = ours.base(torch.from_numpy(pixels).permute(0, 3, 1, 2)).permute(0, 2, 3, 1).numpy()
        assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()
    (tmp_path / "wrong.h5").write_text("not weights")
    with pytest.raises(ConfigError, match="cannot read the weights"):
        load_weights(Xception(69), tmp_path / "wrong.h5")
    with_top = keras.applications.Xception(weights=None)
    assert with_top.count_params() == 22_855_952 + 54_528
