"""Known sets: real files where $COVEY_DATA has them, and small files in the same layouts everywhere."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from covey.data import KNOWN, bundled, load
from covey.errors import DataError

ROOT = os.environ.get("COVEY_DATA")


def real(path):
    """Skip where this file of the data folder is not there."""
    there = ROOT is not None and (Path(ROOT) / path).exists()
    return pytest.mark.skipif(not there, reason=f"$COVEY_DATA/{path} is not there")


def idx(path, array):
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    content = header + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


# Means and deviations of the training pixels as they are published everywhere.
@pytest.mark.parametrize(
    ("name", "counts", "mean", "std"),
    [
        pytest.param("mnist", (60_000, 10_000), [0.1307], [0.3081], marks=real("MNIST/raw")),
        pytest.param("fashion-mnist", (60_000, 10_000), [0.2860], [0.3530], marks=real("FashionMNIST/raw")),
    ],
)
def test_real_mnist_family(name, counts, mean, std):
    data = load(name, ROOT, validation=0.0, download=False)
    assert (len(data.train), len(data.test)) == counts
    assert data.train.inputs.dtype == torch.uint8
    assert data.normalisation.mean == pytest.approx(mean, abs=5e-5)
    assert data.normalisation.std == pytest.approx(std, abs=1e-4)
    if name == "mnist":
        assert torch.bincount(data.train.targets).tolist() == [
            *(5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
        ]
        assert data.test.targets[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]


@real("cifar-10-batches-bin/data_batch_5.bin")
def test_real_cifar10():
    data = load("cifar10", ROOT, validation=0.0, download=False)
    assert torch.bincount(data.train.targets).tolist() == [5000] * 10
    assert [data.classes[k] for k in data.train.targets[:4]] == ["frog", "truck", "truck", "deer"]
    assert data.normalisation.mean == pytest.approx([0.4914, 0.4822, 0.4465], abs=5e-4)
    assert data.normalisation.std == pytest.approx([0.2470, 0.2435, 0.2616], abs=5e-4)


@real("SVHN/test_32x32.mat")
def test_real_svhn_test_part():
    with pytest.warns(UserWarning, match="test part only"):
        data = load("svhn", ROOT, download=False)
    assert data.test.targets[:10].tolist() == [5, 2, 1, 0, 6, 1, 9, 1, 1, 8]
    assert data.shape == (3, 32, 32)
    assert len(data.train) == len(data.validation) == 0


@real("cifar-100-binary/test.bin")
def test_real_cifar100_counts_from_the_file():
    size = (Path(ROOT) / "cifar-100-binary/test.bin").stat().st_size
    with pytest.warns(UserWarning, match="test part only"):
        data = load("cifar100", ROOT, download=False)
    assert len(data.test) == size // 3074
    assert len(data.classes) == 100
    names = (Path(ROOT) / "cifar-100-binary/fine_label_names.txt").read_text().split()
    assert list(data.classes) == names


@real("UCI_Datasets/naval-propulsion-plant/data")
def test_real_uci_split():
    folder = Path(ROOT) / "UCI_Datasets/naval-propulsion-plant/data"
    table = np.loadtxt(folder / "data.txt")
    train = np.loadtxt(folder / "index_train_3.txt").astype(int)
    test = np.loadtxt(folder / "index_test_3.txt").astype(int)
    data = load("uci/naval-propulsion-plant", ROOT, split=3, validation=0.0, download=False)
    mean, std = table[train].mean(0), table[train].std(0)
    std[std < 1e-12 * np.abs(mean)] = 1  # two columns of this set are constant
    expected = (table[test] - mean) / std
    np.testing.assert_allclose(data.test.inputs.numpy(), expected[:, :16], atol=2e-5)
    np.testing.assert_allclose(data.test.targets.numpy(), expected[:, 16], atol=2e-5)
    np.testing.assert_allclose(
        data.target_normalisation.restore(data.test.targets), table[test, 16], rtol=1e-5
    )
    with pytest.raises(DataError, match="splits 0 to 19; got split=20"):
        load("uci/naval-propulsion-plant", ROOT, split=20, download=False)


@real("enwik8/enwik8")
def test_real_enwik8_windows_are_views():
    content = (Path(ROOT) / "enwik8/enwik8").read_bytes()
    data = load("enwik8", ROOT, length=100, download=False)
    assert bytes(data.train.inputs[7].tolist()) == content[700:800]
    assert bytes(data.train.targets[7].tolist()) == content[701:801]
    start = len(content) - 2 * round(0.05 * len(content))
    assert bytes(data.validation.inputs[0].tolist()) == content[start : start + 100]
    assert data.train.inputs.untyped_storage().nbytes() == len(
        content
    )  # one copy of the bytes for everything
    assert data.train.inputs.untyped_storage().data_ptr() == data.test.targets.untyped_storage().data_ptr()


@real("KMNIST/raw")
@real("FashionMNIST/raw")
@real("SVHN/test_32x32.mat")
def test_real_ood_sets_get_the_shape_of_the_data():
    data = load("fashion-mnist", ROOT, ood=("kmnist", "svhn"), download=False)
    assert data.ood["kmnist"].shape == (10_000, 1, 28, 28)
    assert data.ood["svhn"].shape[1:] == (1, 28, 28)
    assert data.ood["svhn"].dtype == torch.uint8


def test_ood_images_are_made_grey_and_scaled_like_pillow_does():
    from covey.data.load import like

    smooth = Image.fromarray(np.random.default_rng(0).integers(0, 256, (4, 4, 3), dtype=np.uint8)).resize(
        (32, 32)
    )
    images = torch.from_numpy(np.asarray(smooth).copy()).permute(2, 0, 1)[None]
    expected = np.asarray(smooth.convert("L").resize((16, 20), Image.Resampling.BILINEAR)).astype(int)
    got = like(images, (1, 20, 16), "x")[0, 0].numpy().astype(int)
    assert np.abs(got - expected).max() <= 1
    assert torch.equal(like(images[:, :1], (3, 32, 32), "x"), images[:, :1].expand(-1, 3, -1, -1))
    with pytest.raises(DataError, match=r"shape \(5,\), which cannot be brought to \(1, 8, 8\)"):
        like(torch.zeros(2, 5), (1, 8, 8), "x")


def test_a_table_is_no_ood_set():
    with pytest.raises(DataError, match="wine holds no images"):
        load("digits", ood=("wine",))


@pytest.mark.parametrize("ending", [".gz", ""])
def test_idx_files_packed_or_not(tmp_path, ending):
    rng = np.random.default_rng(0)
    images = {part: rng.integers(0, 256, (n, 28, 28)) for part, n in (("train", 40), ("t10k", 10))}
    for part, pixels in images.items():
        idx(tmp_path / f"MNIST/raw/{part}-images-idx3-ubyte{ending}", pixels)
        idx(tmp_path / f"MNIST/raw/{part}-labels-idx1-ubyte{ending}", np.arange(len(pixels)) % 10)
    data = load("mnist", tmp_path, validation=0.0, download=False)
    np.testing.assert_array_equal(data.train.inputs[:, 0].numpy(), images["train"])
    assert data.test.targets.tolist() == list(range(10))


def test_emnist_letters_stand_upright_and_start_at_a(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (52, 28, 28))
    for part in ("train", "test"):
        idx(tmp_path / f"EMNIST/raw/emnist-letters-{part}-images-idx3-ubyte.gz", images)
        idx(tmp_path / f"EMNIST/raw/emnist-letters-{part}-labels-idx1-ubyte.gz", np.arange(52) % 26 + 1)
    data = load("emnist-letters", tmp_path, validation=0.0, download=False)
    np.testing.assert_array_equal(data.test.inputs[0, 0].numpy(), images[0].T)
    assert data.classes[data.test.targets[1]] == "b"


def test_cifar100_takes_the_fine_label(tmp_path):
    rng = np.random.default_rng(0)
    records = rng.integers(0, 256, (300, 3074), dtype=np.uint8)
    records[:, 0], records[:, 1] = 7, np.arange(300) % 100
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    records.tofile(folder / "train.bin")
    records[:200].tofile(folder / "test.bin")
    data = load("cifar100", tmp_path, download=False)
    assert len(data.train) + len(data.validation) == 300
    assert data.test.targets.tolist() == list(range(100)) * 2
    np.testing.assert_array_equal(data.test.inputs[3, 1].numpy().ravel(), records[3, 2 + 1024 : 2 + 2048])


def test_cifar_file_that_was_cut_off(tmp_path):
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    (folder / "test.bin").write_bytes(b"0" * (3074 * 2 + 5))
    with pytest.raises(DataError, match="6153 bytes, which is not a whole number of records of 3074"):
        load("cifar100", tmp_path, download=False)


def test_tiny_imagenet_layout(tmp_path):
    folder = tmp_path / "tiny-imagenet-200"
    (folder / "val/images").mkdir(parents=True)
    lines = []
    for k, name in enumerate(("n01", "n02")):
        (folder / f"train/{name}/images").mkdir(parents=True)
        for n in range(10):
            Image.new("RGB", (64, 64), (100 * k, n, 0)).save(folder / f"train/{name}/images/{name}_{n}.png")
        Image.new("L", (64, 64), 50 + k).save(folder / f"val/images/val_{k}.png")  # some real ones are grey
        lines.append(f"val_{k}.png\t{name}\t0\t0\t63\t63")
    (folder / "val/val_annotations.txt").write_text("\n".join(lines) + "\n")
    (folder / "wnids.txt").write_text("n02\nn01\n")
    data = load("tiny-imagenet", tmp_path, validation=0.0, download=False)
    assert data.classes == ("n01", "n02")
    assert data.test.inputs.shape == (2, 3, 64, 64)
    assert data.train.inputs[data.train.targets == 1, 0].unique().tolist() == [100]
    assert data.test.targets.tolist() == [0, 1]
    for name in ("wnids.txt", "val/val_annotations.txt"):
        (folder / name).write_bytes(b"\xff\xfe n01")
        with pytest.raises(DataError, match=f"{name} is no text.*fetch it again"):
            load("tiny-imagenet", tmp_path, download=False)


def test_a_corruption_at_its_severity(tmp_path):
    (tmp_path / "CIFAR-10-C").mkdir()
    images = np.random.default_rng(0).integers(0, 256, (50, 32, 32, 3), dtype=np.uint8)
    np.save(tmp_path / "CIFAR-10-C/fog.npy", images)
    np.save(tmp_path / "CIFAR-10-C/labels.npy", np.tile(np.arange(10), 5))
    data = load("cifar10-c/fog/3", tmp_path, download=False)
    np.testing.assert_array_equal(data.test.inputs.permute(0, 2, 3, 1).numpy(), images[20:30])
    for wrong in ("cifar10-c", "cifar10-c/fog", "cifar10-c/smog/3", "cifar10-c/fog/6"):
        with pytest.raises(DataError, match="expected cifar10-c/<corruption>/<severity 1 to 5>"):
            load(wrong, tmp_path, download=False)


def test_a_pickled_array_is_refused(tmp_path):
    (tmp_path / "CIFAR-10-C").mkdir()
    np.save(tmp_path / "CIFAR-10-C/fog.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.save(tmp_path / "CIFAR-10-C/labels.npy", np.arange(10))
    with pytest.raises(DataError, match=r"fog.npy is not a plain .npy array"):
        load("cifar10-c/fog/1", tmp_path, download=False)


def test_a_broken_gzip_file(tmp_path):
    idx(tmp_path / "KMNIST/raw/t10k-labels-idx1-ubyte.gz", np.zeros(3))
    images = tmp_path / "KMNIST/raw/t10k-images-idx3-ubyte.gz"
    idx(images, np.zeros((3, 28, 28)))
    images.write_bytes(images.read_bytes()[:-12])
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte.gz is not a whole gzip file"):
        load("kmnist", tmp_path, download=False)
    images.write_bytes(gzip.compress(b"something else altogether"))
    with pytest.raises(DataError, match="is not an idx file of bytes"):
        load("kmnist", tmp_path, download=False)


def test_images_without_their_labels(tmp_path):
    idx(tmp_path / "KMNIST/raw/t10k-images-idx3-ubyte.gz", np.zeros((3, 28, 28)))
    idx(tmp_path / "KMNIST/raw/t10k-labels-idx1-ubyte.gz", np.zeros(4))
    with pytest.raises(DataError, match="3 images, but there are 4 labels"):
        load("kmnist", tmp_path, download=False)


def test_a_uci_split_that_forgets_rows(tmp_path):
    folder = tmp_path / "UCI_Datasets/yacht/data"
    folder.mkdir(parents=True)
    np.savetxt(folder / "data.txt", np.random.default_rng(0).normal(size=(20, 7)))
    np.savetxt(folder / "index_features.txt", np.arange(6), fmt="%d")
    np.savetxt(folder / "index_target.txt", [6], fmt="%d")
    for k in range(20):
        np.savetxt(folder / f"index_train_{k}.txt", np.arange(17), fmt="%d")
        np.savetxt(folder / f"index_test_{k}.txt", [17, 18], fmt="%d")
    with pytest.raises(DataError, match="does not name each of the 20 rows once"):
        load("uci/yacht", tmp_path, download=False)


def test_files_that_are_missing_and_may_not_be_downloaded(tmp_path):
    with pytest.raises(
        DataError, match=r"train-images-idx3-ubyte.gz is not there .missing: 4 files.*download=False"
    ):
        load("mnist", tmp_path, download=False)


@pytest.mark.parametrize(
    ("name", "near"),
    [("fashion_mnist", "'fashion-mnist'"), ("cifar-10", "'cifar10'"), ("uci/yatch", "'uci/yacht'")],
)
def test_an_unknown_name(name, near):
    with pytest.raises(DataError, match=f"neither a known data set nor a file or folder.*{near}"):
        load(name)


@pytest.mark.parametrize(
    ("name", "rows", "shape", "outputs"),
    [
        ("breast-cancer", 569, (30,), 2),
        ("wine", 178, (13,), 3),
        ("diabetes", 442, (10,), 1),
        ("digits", 1797, (1, 8, 8), 10),
    ],
)
def test_bundled_sets(name, rows, shape, outputs):
    data = load(name)
    assert len(data.train) + len(data.validation) + len(data.test) == rows
    assert data.shape == shape
    assert data.outputs == outputs
    prepared = data.prepare(data.train.inputs)
    axes = (0, 2, 3) if len(shape) == 3 else 0
    torch.testing.assert_close(prepared.mean(axes), torch.zeros_like(prepared.mean(axes)), atol=1e-5, rtol=0)
    torch.testing.assert_close(prepared.std(axes), torch.ones_like(prepared.mean(axes)), atol=5e-3, rtol=0)


def test_the_bundled_part_of_fashion_mnist():
    data = load("fashion-mnist-small", validation=0.0, ood=("digits",), download=False)
    assert (len(data.train), len(data.test)) == (3000, 2000)
    # the first labels, and how often each class occurs, as the publisher's files have them
    assert data.train.targets[:10].tolist() == [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]
    assert data.test.targets[:10].tolist() == [9, 2, 1, 1, 6, 1, 4, 6, 5, 7]
    assert torch.bincount(data.test.targets).tolist() == [200, 203, 214, 190, 219, 195, 197, 200, 194, 188]
    assert data.ood["digits"].shape == (1797, 1, 28, 28)
    assert (Path(bundled.FASHION_FOLDER) / "LICENSE.txt").read_text().count("MIT License") == 1


@real("FashionMNIST/raw")
def test_the_bundled_part_is_the_whole_sets_beginning():
    small, whole = (
        load(name, ROOT, validation=0.0, download=False) for name in ("fashion-mnist-small", "fashion-mnist")
    )
    assert torch.equal(small.train.inputs, whole.train.inputs[:3000])
    assert torch.equal(small.test.targets, whole.test.targets[:2000])


def test_every_known_set_says_where_its_files_are():
    for name, source in KNOWN.items():
        assert source.description, name
        urls = [url for remote in source.remotes for url in remote.urls]
        assert bool(urls) == bool(source.test), name
        assert all(url.startswith("http") for url in urls), name
        for remote in source.remotes:
            kind, _, value = (remote.checksum or "md5:" + "0" * 32).partition(":")
            assert len(value) == {"md5": 32, "sha256": 64}[kind], name


@pytest.mark.parametrize(
    ("name", "count", "each", "shape"),
    [
        pytest.param("kmnist", 10_000, 1000, (1, 28, 28), marks=real("KMNIST/raw")),
        pytest.param("notmnist", 10_000, 1000, (1, 28, 28), marks=real("notMNIST/raw")),
    ],
)
@pytest.mark.filterwarnings("ignore:.*test part only")
def test_real_balanced_test_sets(name, count, each, shape):
    data = load(name, ROOT, download=False)
    assert len(data.test) == count
    assert torch.bincount(data.test.targets).tolist() == [each] * 10
    assert data.shape == shape


@real("tiny-imagenet-200/val/images")
@pytest.mark.filterwarnings("ignore:.*test part only")
def test_real_tiny_imagenet_labels_follow_the_annotations():
    folder = Path(ROOT) / "tiny-imagenet-200/val"
    lines = [line.split("\t") for line in (folder / "val_annotations.txt").read_text().splitlines()]
    data = load("tiny-imagenet", ROOT, download=False)
    assert [data.classes[k] for k in data.test.targets] == [line[1] for line in lines]
    last = np.asarray(Image.open(folder / "images" / lines[-1][0]).convert("RGB"))
    np.testing.assert_array_equal(data.test.inputs[-1].permute(1, 2, 0).numpy(), last)


@pytest.mark.parametrize(
    ("name", "rows", "columns"),
    [
        ("bostonHousing", 506, 13),
        ("concrete", 1030, 8),
        ("energy", 768, 8),
        ("kin8nm", 8192, 8),
        ("power-plant", 9568, 4),
        ("protein-tertiary-structure", 45730, 9),
        ("wine-quality-red", 1599, 11),
        ("yacht", 308, 6),
    ],
)
@real("UCI_Datasets")
def test_real_uci_sizes(name, rows, columns):
    data = load(f"uci/{name}", ROOT, download=False)
    assert len(data.train) + len(data.validation) + len(data.test) == rows
    assert len(data.test) == pytest.approx(0.1 * rows, abs=1)
    assert data.shape == (columns,)


@real("tinyshakespeare/input.txt")
def test_real_tinyshakespeare():
    data = load("tinyshakespeare", ROOT, length=64, download=False)
    assert bytes(data.train.inputs[0].tolist()).startswith(b"First Citizen:\nBefore we proceed")
    assert len(torch.unique(data.train.inputs)) == 65
