"""ResNet-152: parameters and FLOP as they are known, CIFAR-10's files, and a training on real pictures."""

from __future__ import annotations

import hashlib
import os
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.nn.functional import cross_entropy  # noqa: E402

from joulelab.core.errors import ConfigError  # noqa: E402
from joulelab.workloads import resnet152_cifar10  # noqa: E402
from joulelab.workloads.data import pictures  # noqa: E402
from joulelab.workloads.models.resnet import resnet  # noqa: E402
from joulelab.workloads.training.model_figures import count_model  # noqa: E402

pytestmark = pytest.mark.system


@pytest.mark.parametrize(
    ("stem", "classes", "pixels", "parameters", "gigaflop"),
    [
        ("imagenet", 1000, 224, 60_192_808, 23.027),
        ("cifar", 10, 32, 58_156_618, 7.4443),
        ("imagenet", 10, 32, 58_164_298, 0.4699),
    ],
)
def test_counts_are_those_that_are_known(stem, classes, pixels, parameters, gigaflop):
    found = count_model(
        lambda: resnet(classes, stem=stem),
        lambda device: (torch.zeros(1, 3, pixels, pixels, device=device), torch.zeros(1, dtype=int, device=device)),
        lambda model, batch: cross_entropy(model(batch[0]), batch[1]),
    )
    assert (found.parameters, found.trained) == (parameters, parameters)
    assert found.forward == pytest.approx(gigaflop * 1e9, rel=1e-4)
    assert 2.9 < found.training / found.forward < 3.0  # the first layer needs no gradient of its input


def rows(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, (count, 3072), dtype=np.uint8), generator.integers(0, 10, count, dtype=np.uint8)


@pytest.fixture
def binary(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for n, name in enumerate([*pictures.TRAIN, *pictures.TEST]):
        pixels, labels = rows(6, n)
        (folder / f"{name}.bin").write_bytes(np.hstack([labels[:, None], pixels]).tobytes())
    return folder


@pytest.fixture
def pickled(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for n, name in enumerate([*pictures.TRAIN, *pictures.TEST]):
        pixels, labels = rows(6, n)
        (folder / name).write_bytes(pickle.dumps({b"data": pixels, b"labels": labels.tolist()}, protocol=2))
    return folder


def load(folder, **more):
    return pictures.open_pictures(str(folder), train=0, test=0, seed=0, **more)


def test_both_published_forms_give_the_same(binary, pickled):
    first, second = load(binary), load(pickled)
    assert len(first.train) == len(second.train) == 30
    assert len(first.test) == 6
    for k in range(6):
        (a, x), (b, y) = first.test[k], second.test[k]
        assert torch.equal(a, b)
        assert x == y
    pixels, labels = rows(6, 5)
    assert first.test[2][1] == labels[2]
    deviation, mean = (torch.tensor(values).view(3, 1, 1) for values in (pictures.DEVIATION, pictures.MEAN))
    back = first.test[2][0] * deviation + mean
    assert torch.equal((back * 255).round().byte().flatten(), torch.from_numpy(pixels[2]))


def test_the_folder_above_does_as_well(binary):
    assert len(load(binary.parent).train) == 30


@pytest.mark.parametrize("form", ["binary", "pickled"])
def test_other_pictures_of_the_same_form_are_not_named_cifar(form, request):
    source = load(request.getfixturevalue(form)).source
    assert (source.name, source.real, source.samples) == ("folder in the form of cifar-10", True, 30)


def test_a_file_that_is_cut_off_is_named(binary):
    file = binary / "data_batch_3.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ConfigError, match=r"data_batch_3.bin.*no rows"):
        load(binary)


def test_a_pickle_that_would_run_a_program_is_refused(pickled, tmp_path):
    class Wrong:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/ran",)

    (pickled / "data_batch_2").write_bytes(pickle.dumps({b"data": Wrong(), b"labels": []}))
    with pytest.raises(ConfigError, match=r"data_batch_2.*posix.system"):
        load(pickled)
    assert not (tmp_path / "ran").exists()


def test_an_empty_folder_says_what_belongs_there(tmp_path):
    with pytest.raises(ConfigError, match="unpack cifar-10-batches-py or cifar-10-batches-bin"):
        load(tmp_path)


@pytest.mark.parametrize("form", ["binary", "pickled"])
def test_the_usual_folders_are_found(form, request, monkeypatch):
    folder = request.getfixturevalue(form)
    monkeypatch.setenv("JOULELAB_DATA", str(folder.parent))
    assert load("auto").source.where == str(folder)


@pytest.mark.parametrize("form", ["binary", "pickled"])
def test_only_checksums_give_the_plain_name(form, request, monkeypatch):
    folder = request.getfixturevalue(form)
    each = tuple(np.bincount(np.concatenate(y), minlength=10).tolist() for y in labels_of(6))
    monkeypatch.setattr(pictures, "IMAGES", each)
    assert load(folder).source.name == "cifar-10 (by its counts)"
    if form == "pickled":
        sums = {name: hashlib.md5((folder / name).read_bytes()).hexdigest() for name in pictures.PUBLISHED}
        monkeypatch.setattr(pictures, "PUBLISHED", sums)
        assert load(folder).source.name == "cifar-10"


def labels_of(count: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    return [rows(count, n)[1] for n in range(5)], [rows(count, 5)[1]]


def test_any_number_of_stages_is_taken():
    assert resnet152_cifar10.PARAMETERS["depths"][1] == "blocks of each stage"
    given = {key: default for key, (default, _) in resnet152_cifar10.PARAMETERS.items()}
    assert resnet152_cifar10._read({**given, "depths": "1,2"}) == (1, 2)
    with torch.device("meta"):
        assert resnet(10, stem="cifar", depths=(1, 2))(torch.zeros(1, 3, 32, 32)).shape == (1, 10)


def test_a_stand_in_has_as_many_and_says_so():
    data = pictures.open_pictures("synthetic-memory", train=50, test=20, seed=3)
    assert (len(data.train), len(data.test)) == (50, 20)
    assert (data.source.name, data.source.real) == ("synthetic-memory", False)
    with pytest.raises(ConfigError, match="give data=synthetic-memory"):
        pictures.open_pictures("synthetic-files", train=50, test=20, seed=3)


@pytest.mark.skipif(not pictures.FASHION_FOLDER.is_dir(), reason="apt-get install dataset-fashion-mnist")
class TestFashion:
    def test_all_of_it_is_read(self):
        data = pictures.read_fashion_mnist()
        assert (len(data.train), len(data.test)) == (60_000, 10_000)
        assert (data.source.name, data.source.real) == ("fashion-mnist", True)
        labels = np.bincount([data.test[k][1] for k in range(0, 10_000, 10)], minlength=10)
        assert labels.min() > 70
        picture, _ = data.test[0]
        assert picture.shape == (3, 32, 32)
        assert torch.equal(picture[0], picture[2])


def test_fashion_that_is_not_installed_says_how(tmp_path):
    with pytest.raises(ConfigError, match="apt-get install dataset-fashion-mnist"):
        pictures.read_fashion_mnist(tmp_path)
