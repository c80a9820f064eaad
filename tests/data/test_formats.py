"""Every known set is read from small files in its publisher's format, written here by other means than covey's."""

import gzip

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from covey.data import KNOWN, load
from covey.errors import DataError

RANDOM = np.random.default_rng(0)
CLASSES = np.arange(20) % 10


def pixels(*shape):
    return RANDOM.integers(0, 256, shape, dtype=np.uint8)


def idx(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    path.write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes()))


def mnist_like(folder, train, test, root, labels=CLASSES):
    images = {part: pixels(len(labels), 28, 28) for part in (train, test)}
    for part, array in images.items():
        idx(root / f"{folder}/raw/{part}-images-idx3-ubyte.gz", array)
        idx(root / f"{folder}/raw/{part}-labels-idx1-ubyte.gz", labels)
    return images[test][:, None]


def cifar(folder, files, label_bytes, root, labels=CLASSES):
    (root / folder).mkdir()
    for file in files:
        records = pixels(len(labels), label_bytes + 3072)
        records[:, label_bytes - 1] = labels
        records.tofile(root / folder / file)
    return records[:, label_bytes:].reshape(-1, 3, 32, 32)


def svhn(root):
    (root / "SVHN").mkdir()
    for part in ("train", "test"):
        images = pixels(32, 32, 3, 20)
        labels = np.where(CLASSES == 0, 10, CLASSES).astype(np.uint8)  # MATLAB counts from 1
        savemat(root / f"SVHN/{part}_32x32.mat", {"X": images, "y": labels[:, None]}, do_compression=True)
    return images.transpose(3, 2, 0, 1)


def tiny_imagenet(root):
    folder = root / "tiny-imagenet-200"
    names = [f"n{k:02}" for k in range(10)]
    (folder / "val/images").mkdir(parents=True)
    images = pixels(20, 64, 64, 3)
    lines = []
    for k in range(20):
        name = names[k % 10]
        (folder / f"train/{name}/images").mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels(64, 64, 3)).save(folder / f"train/{name}/images/{name}_{k}.png")
        Image.fromarray(images[k]).save(folder / f"val/images/val_{k}.png")
        lines.append(f"val_{k}.png\t{name}\t0\t0\t63\t63\n")
    (folder / "val/val_annotations.txt").write_text("".join(lines))
    (folder / "wnids.txt").write_text("\n".join(names))
    return images.transpose(0, 3, 1, 2)


def corrupted(folder, root):
    (root / folder).mkdir()
    images = pixels(100, 32, 32, 3)
    np.save(root / folder / "fog.npy", images)
    np.save(root / folder / "labels.npy", np.tile(CLASSES, 5))
    return images[20:40].transpose(0, 3, 1, 2)


IMAGES = {
    "mnist": lambda root: mnist_like("MNIST", "train", "t10k", root),
    "fashion-mnist": lambda root: mnist_like("FashionMNIST", "train", "t10k", root),
    "kmnist": lambda root: mnist_like("KMNIST", "train", "t10k", root),
    "notmnist": lambda root: mnist_like("notMNIST", "train", "t10k", root),
    "emnist-letters": lambda root: mnist_like(
        "EMNIST", "emnist-letters-train", "emnist-letters-test", root, np.arange(1, 27)
    ).transpose(0, 1, 3, 2),
    "cifar10": lambda root: cifar(
        "cifar-10-batches-bin", [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"], 1, root
    ),
    "cifar100": lambda root: cifar("cifar-100-binary", ["train.bin", "test.bin"], 2, root, np.arange(100)),
    "svhn": svhn,
    "tiny-imagenet": tiny_imagenet,
    "cifar10-c": lambda root: corrupted("CIFAR-10-C", root),
    "cifar100-c": lambda root: corrupted("CIFAR-100-C", root),
}
TEXTS = {"enwik8": "enwik8/enwik8", "tinyshakespeare": "tinyshakespeare/input.txt"}
TABLES = [name for name in KNOWN if name.startswith("uci/")]


def test_every_known_set_that_is_a_file_is_read_here():
    assert {*IMAGES, *TEXTS, *TABLES} == {name for name, source in KNOWN.items() if source.test}


@pytest.mark.parametrize("name", IMAGES)
def test_images_and_labels_come_out_as_they_went_in(name, tmp_path):
    expected = IMAGES[name](tmp_path)
    asked = f"{name}/fog/2" if name.endswith("-c") else name
    data = load(asked, tmp_path, validation=0.0, download=False)
    np.testing.assert_array_equal(data.test.inputs.numpy(), expected)
    every = {"emnist-letters": 26, "cifar100": 100}.get(name, 10)  # classes, in turn
    assert data.test.targets.tolist() == [k % every for k in range(len(expected))]
    if not name.endswith("-c"):
        assert torch.bincount(data.train.targets).tolist() == [len(data.train) // every] * every


@pytest.mark.parametrize("name", TEXTS)
def test_bytes_come_out_as_they_went_in(name, tmp_path):
    content = bytes(RANDOM.integers(0, 256, 2000, dtype=np.uint8))
    (tmp_path / TEXTS[name]).parent.mkdir()
    (tmp_path / TEXTS[name]).write_bytes(content)
    data = load(name, tmp_path, length=10, download=False)
    assert bytes(data.train.inputs.flatten().tolist()) == content[:1790]  # the last byte is a target only
    assert bytes(data.train.targets.flatten().tolist()) == content[1:1791]
    assert bytes(data.test.inputs[0].tolist()) == content[1900:1910]


def uci(root, name, rows=20):
    folder = root / "UCI_Datasets" / name.removeprefix("uci/") / "data"
    folder.mkdir(parents=True)
    table = RANDOM.normal(size=(rows, 4))
    np.savetxt(folder / "data.txt", table)
    np.savetxt(folder / "index_features.txt", [0, 1, 3], fmt="%d")
    np.savetxt(folder / "index_target.txt", [2], fmt="%d")
    for k in range(20):
        order = np.random.default_rng(k).permutation(rows)
        np.savetxt(folder / f"index_train_{k}.txt", order[2:], fmt="%d")
        np.savetxt(folder / f"index_test_{k}.txt", order[:2], fmt="%d")
    return folder, table


@pytest.mark.parametrize("name", TABLES)
def test_a_standard_split_of_a_table(name, tmp_path):
    _, table = uci(tmp_path, name)
    order = np.random.default_rng(3).permutation(20)
    data = load(name, tmp_path, split=3, validation=0.0, download=False)
    mean, std = table[order[2:]].mean(0), table[order[2:]].std(0)
    expected = (table[order[:2]] - mean) / std
    np.testing.assert_allclose(data.test.inputs.numpy(), expected[:, [0, 1, 3]], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(data.test.targets.numpy(), expected[:, 2], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("index_target.txt", "2 3\n", "index_target.txt names 2 columns; expected one"),
        ("index_target.txt", "9\n", "index_target.txt names column 9, and the table has the columns 0 to 3"),
        ("index_features.txt", "0\n-5\n", "index_features.txt names column -5"),
        ("index_features.txt", "0\n1.5\n", "index_features.txt: expected whole numbers"),
        ("index_features.txt", "__import__('os')\n", "is not a table of numbers"),
        ("data.txt", "1 2 3\n4 5\n", "is not a table of numbers"),
        ("index_test_0.txt", "nan\n1\n", "index_test_0.txt: expected whole numbers"),
    ],
)
def test_a_table_whose_files_do_not_fit(file, content, words, tmp_path):
    folder, _ = uci(tmp_path, "uci/yacht")
    (folder / file).write_text(content)
    with pytest.raises(DataError, match=words):
        load("uci/yacht", tmp_path, split=0, download=False)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"X": pixels(32, 32, 3)}, "is not a MATLAB file with X and y"),
        ({"X": pixels(32, 32, 3), "y": CLASSES}, r"expected X of shape \(32, 32, 3, n\)"),
        ({"X": pixels(32, 32, 3, 4), "y": CLASSES}, r"expected X .* as many labels"),
        ({"X": RANDOM.normal(size=(32, 32, 3, 20)), "y": CLASSES}, "expected X .* of bytes"),
        ({"X": np.array([{}] * 20, dtype=object), "y": CLASSES}, "expected X"),
        ({"X": pixels(32, 32, 3, 20), "y": CLASSES - 5}, "labels from 1 to 10"),
    ],
)
def test_a_matlab_file_that_holds_something_else(content, words, tmp_path):
    svhn(tmp_path)
    savemat(tmp_path / "SVHN/test_32x32.mat", content)
    with pytest.raises(DataError, match=words):
        load("svhn", tmp_path, download=False)


def test_a_matlab_file_that_is_none(tmp_path):
    svhn(tmp_path)
    path = tmp_path / "SVHN/test_32x32.mat"
    for content in (b"", b"not a MATLAB file" * 20, path.read_bytes()[:-500]):
        path.write_bytes(content)
        with pytest.raises(DataError, match="is not a MATLAB file with X and y"):
            load("svhn", tmp_path, download=False)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("val_0.png\tn99\t0\t0\t63\t63\n", "line 1 names the class 'n99', which wnids.txt does not"),
        ("val_0.png n01\n", "line 1 is not a picture and its class"),
        ("../../secret.png\tn01\n", "line 1 is not a picture and its class"),
    ],
)
def test_annotations_of_tiny_imagenet_that_do_not_fit(lines, words, tmp_path):
    tiny_imagenet(tmp_path)
    (tmp_path / "tiny-imagenet-200/val/val_annotations.txt").write_text(lines)
    with pytest.raises(DataError, match=words):
        load("tiny-imagenet", tmp_path, download=False)


def test_a_class_of_tiny_imagenet_without_its_folder(tmp_path):
    tiny_imagenet(tmp_path)
    (tmp_path / "tiny-imagenet-200/wnids.txt").write_text("\n".join(f"n{k:02}" for k in range(11)))
    with pytest.raises(DataError, match="n10.images is not there"):
        load("tiny-imagenet", tmp_path, download=False)
