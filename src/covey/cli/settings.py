"""All that a run is made of, from flags and recipe files, and the objects that it stands for."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_origin

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from covey import registry
from covey.data import Data, load
from covey.data.container import Normalisation, Task
from covey.data.load import LENGTH
from covey.data.splits import fewer
from covey.data.table import is_table as is_own_table
from covey.errors import OptionError, StoreError, suggest
from covey.files import is_ordinary
from covey.method import Method, Training
from covey.options import fits, in_words, type_hints
from covey.seeds import random_state_kept
from covey.store import load as stored_ensemble
from covey.tensor_files import check_size
from covey.train.recipe import Machine, Recipe
from covey.trainings.single import Single
from covey.zoo import NETWORKS, from_file, from_hf, from_timm, names

_log = logging.getLogger("covey")

SINGLE = "single"
BYTES = 256  # classes of a text
_COLUMNS = ("breast-cancer", "iris", "wine", "diabetes")  # known tables, besides UCI's

TABLE = Recipe(epochs=60, batch=32, optimizer="adamw", lr=3e-3, decay=1e-4)
"""How tables are trained if nothing else is said: as the scikit-learn estimators do."""

TRANSFORMER = Recipe(epochs=5, batch=32, optimizer="adamw", lr=1e-4, decay=0.01, clip=1.0)
"""How a network of Hugging Face is trained if nothing else is said."""


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """What to train on.

    Args:
        data: a known name (`covey data` lists them), a folder of images, a table, an .npz file or a text.
        root: folder of the known sets; $COVEY_DATA if not given, else ~/.cache/covey/data.
        target: tables: the column to predict.
        task: the task, where it should not be found out from the data.
        validation: share of the training part held back to choose by.
        test: share held back for the test, where the data have no test part.
        image_size: image folders: side that all images are brought to, or height and width.
        image_mean: images: mean of each channel to normalise with, of intensities from 0 to 1; that which the
            weights of --network hf:NAME or timm:NAME were trained with, where they say it, else that of the training
            images.
        image_std: images: standard deviation of each channel, likewise.
        length: texts: bytes in a window, or most tokens of a sample.
        split: UCI sets: number of the standard split.
        held_out: classes that are taken away and become an out-of-distribution set.
        ood: known sets to test out-of-distribution detection on, or inputs of your own: a folder of images, a table
            with the same columns, an array file.
        ignore: tables: columns to leave out.
        text: tables: the column of texts to classify by a network of Hugging Face.
        tokenizer: what cuts those texts into tokens: a folder, or a name in the hub's cache; that of --network hf:NAME
            if not given.
        skip_bad: image folders: go on without images that cannot be read, and note which.
        samples: use only so many samples of each part, drawn with the classes in proportion.
        train_samples: use only so many samples to train on, and all to validate and test with.
        data_seed: of the split into parts, and of the samples that are drawn.
    """

    data: str = "digits"
    root: str | None = None
    target: str | None = None
    task: Task | None = None
    validation: float | None = None
    test: float | None = None
    image_size: tuple[int, ...] = ()
    image_mean: tuple[float, ...] = ()
    image_std: tuple[float, ...] = ()
    length: int = LENGTH
    split: int = 0
    held_out: tuple[str, ...] = ()
    ood: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    text: str | None = None
    tokenizer: str | None = None
    skip_bad: bool = False
    samples: int | None = None
    train_samples: int | None = None
    data_seed: int = 0

    def load(self) -> Data:
        """The data."""
        side = self.image_size[0] if len(self.image_size) == 1 else self.image_size or None
        data = load(
            self.data,
            self.root,
            self.data_seed,
            target=self.target,
            task=self.task,
            validation=self.validation,
            test=self.test,
            image_size=side,
            length=self.length,
            split=self.split,
            held_out=self.held_out,
            ood=self.ood,
            ignore=self.ignore,
            skip_bad=self.skip_bad,
            text=self.text,
            tokenizer=self.tokenizer,
            normalisation=self._normalisation(),
        )
        if self.samples is not None:
            data = fewer(data, self.samples, self.data_seed)
        if self.train_samples is not None:
            data = fewer(data, self.train_samples, self.data_seed, parts=("train",))
        return data

    def _normalisation(self) -> Normalisation | None:
        """The mean and deviation of images that were asked for."""
        if not self.image_mean and not self.image_std:
            return None
        if not self.image_mean or not self.image_std:
            raise OptionError("image_mean and image_std go together; one is missing.")
        if min(self.image_std) <= 0:
            raise OptionError(f"image_std is above 0 (--image-std); got {min(self.image_std)}.")
        return Normalisation(self.image_mean, self.image_std)


@dataclass(frozen=True, kw_only=True)
class Network:
    """What to train.

    Args:
        network: a name of covey.zoo (`covey networks` lists them), timm:NAME, hf:FOLDER_OR_NAME, or FILE.py:FUNCTION of
            your own, which is run; several with + between them for members that differ. By default a small one that
            fits the data.
        network_option: options of the network, such as dropout=0.2 or hidden=[200,200].
        weights: where trained weights come from: a .safetensors file of the network's state, or the folder of a run
            of one network.
    """

    network: str | None = None
    network_option: tuple[str, ...] = ()
    weights: str | None = None

    def build(self, data: Data, recipe: Recipe) -> nn.Module | list[nn.Module]:
        """The network for these data, or the networks, initialised from the recipe's seed."""
        with random_state_kept(seed=recipe.seed):
            made = self.made(data.record, recipe)
        if len(made) > 1:
            return made
        return made[0] if self.weights is None else trained(made[0], Path(self.weights))

    def made(self, record: Mapping[str, Any], recipe: Recipe) -> list[nn.Module]:
        """The networks for data with this record, without trained weights of another run."""
        targets = record["target_normalisation"] or {"mean": ()}
        outputs = max(1, len(record["classes"]), len(targets["mean"]))
        if record["task"] == "language":
            outputs = BYTES
        if record["task"] == "regression":
            outputs *= recipe.outputs_of_a_number
        column = (record["columns"] or [{}])[0]
        made = []
        for name in names.split(self.network or usual_network(record)):
            _check_task(name, record["task"])
            network = names.build(
                name,
                shape=record["shape"],
                outputs=outputs,
                options=parse_options(self.network_option),
                tokens=column if column.get("kind") == "text" else None,
            )
            made.append(network)
        return made

    @property
    def code(self) -> list[str]:
        """The networks that are functions in Python files, which building them runs."""
        return [name for name in names.split(self.network or "") if from_file.is_code(name)]

    def absolute(self) -> Network:
        """The same, with the full paths of Python files, so that it means the same elsewhere."""
        if self.network is None or not self.code:
            return self
        parts = [from_file.absolute(n) if from_file.is_code(n) else n for n in names.split(self.network)]
        return replace(self, network="+".join(parts))


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A whole run."""

    method: str = SINGLE
    options: Method | Training = field(default_factory=Single)
    dataset: Dataset = field(default_factory=Dataset)
    network: Network = field(default_factory=Network)
    recipe: Recipe = field(default_factory=Recipe)
    machine: Machine = field(default_factory=Machine)

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        parts = {name: asdict(getattr(self, name)) for name in ("dataset", "network", "recipe", "machine")}
        return json.loads(json.dumps({**registry.described(self.options), **parts}))

    @staticmethod
    def from_dict(stored: Mapping[str, Any]) -> Settings:
        """From what `to_dict` gave, or from part of it; unknown keys are errors."""
        method = stored.get("method", SINGLE)
        if not isinstance(method, str):
            raise OptionError(f"method should be a method's name; got {method!r}.")
        unknown = [key for key in stored if key not in (f.name for f in fields(Settings))]
        if unknown:
            known = [f.name for f in fields(Settings)]
            raise OptionError(f"unknown setting {unknown[0]!r}{suggest(unknown[0], known)}.")
        return Settings(
            method=method,
            options=updated(
                registry.lookup(method)(), _renamed(method, stored.get("options", {})), "options"
            ),
            dataset=updated(Dataset(), stored.get("dataset", {}), "dataset"),
            network=updated(Network(), stored.get("network", {}), "network"),
            recipe=updated(Recipe(), stored.get("recipe", {}), "recipe"),
            machine=updated(Machine(), stored.get("machine", {}), "machine"),
        )

    def complete(self) -> Settings:
        """The same with what follows from other settings: a network's own tokenizer or normalisation, full paths."""
        dataset, name = self.dataset, self.network.network or ""
        # A table and a network of Hugging Face: there is nothing but texts that it could classify.
        wanted = dataset.text is not None or is_own_table(Path(dataset.data))
        if name.startswith("hf:") and wanted and dataset.tokenizer is None:
            dataset = replace(dataset, tokenizer=name.removeprefix("hf:"))
        elif not dataset.image_mean and not dataset.image_std:
            dataset = _normalised_for(self.network, dataset)
        return replace(self, dataset=dataset, network=self.network.absolute())

    def scaled(self, small: Mapping[str, Any]) -> Settings:
        """The same at the size that a recipe file's [small] table says: fewer epochs and samples, a smaller network."""
        recipe = self.recipe.scaled(small.get("epochs", self.recipe.epochs) / self.recipe.epochs)
        network = updated(
            self.network, {k: small[k] for k in ("network", "network_option") if k in small}, "small"
        )
        dataset = replace(self.dataset, **{k: small[k] for k in ("data", "samples") if k in small})
        options = updated(self.options, small.get("options", {}), "small.options")
        recipe = updated(recipe, {k: small[k] for k in ("batch", "lr") if k in small}, "small")
        return replace(self, recipe=recipe, network=network, dataset=dataset, options=options)


def _normalised_for(network: Network, dataset: Dataset) -> Dataset:
    """The data with images normalised as the weights of a network of timm or Hugging Face want them."""
    name, wanted = network.network or "", {}
    for part in names.split(name):
        source, _, rest = part.partition(":")
        if source == "hf":
            wanted[part] = from_hf.normalisation(rest)
        elif source == "timm" and parse_options(network.network_option).get("pretrained"):
            wanted[part] = from_timm.normalisation(rest)
    found = set(wanted.values())
    if len(found) > 1:
        raise OptionError(
            f"{', '.join(wanted)} want images normalised in different ways; say one with --image-mean and --image-std."
        )
    scale = found.pop() if found else None
    if scale is None:
        return dataset
    mean, std = (" ".join(f"{value:.4g}" for value in numbers) for numbers in scale)
    _log.info(
        "images are normalised as %s wants them: mean %s, std %s (--image-mean, --image-std)", name, mean, std
    )
    return replace(dataset, image_mean=scale[0], image_std=scale[1])


def trained(network: nn.Module, path: Path) -> nn.Module:
    """The network with weights from a file, or from the folder of a run of one network."""
    if path.is_dir():
        ensemble = stored_ensemble(path / "ensemble" if (path / "ensemble").is_dir() else path, network)
        if ensemble.members > 1:
            raise OptionError(
                f"weights={str(path)!r} is a run of {ensemble.members} members; give one of a single network."
            )
        return ensemble.member(0)
    if path.suffix != ".safetensors":
        raise OptionError(
            f"weights is a .safetensors file or the folder of a run; got {str(path)!r}. Another kind of file becomes "
            "one with safetensors.torch.save_file(network.state_dict(), 'network.safetensors')."
        )
    if not is_ordinary(path):
        raise StoreError(f"weights cannot be read from {path}: it is missing, or no ordinary file")
    try:
        check_size(path)
        network.load_state_dict(load_file(path))
    except (StoreError, OSError, SafetensorError, RuntimeError, ValueError, KeyError) as error:
        raise StoreError(f"weights cannot be read from {path}: {' '.join(str(error).split())}") from error
    return network


def _renamed(method: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Options of a stored run under the names that they have now."""
    kind = registry.lookup(method)
    if not isinstance(given, Mapping) or not issubclass(kind, Method):
        return given
    return kind.renamed(given)


def updated(default: Any, given: Mapping[str, Any], where: str) -> Any:
    """A dataclass with some fields replaced by values from a file, which are checked against its types."""
    if not isinstance(given, Mapping):
        raise OptionError(f"{where} should be a table of settings; got {given!r}.")
    prefix = f"{where}." if where else ""
    known = {f.name: f for f in fields(default)}
    kind: type = type(default)
    hints = type_hints(kind)
    values = {}
    for key, value in given.items():
        if key not in known:
            raise OptionError(f"{where} has no setting {key!r}{suggest(key, known)}.")
        present = getattr(default, key)
        if is_dataclass(present) and isinstance(value, Mapping):
            values[key] = updated(present, value, f"{prefix}{key}")
            continue
        if isinstance(value, str) and get_origin(hints[key]) is tuple:
            value = [value]
        values[key] = tuple(value) if isinstance(value, list) else value
        if not fits(values[key], hints[key]):
            raise OptionError(f"{prefix}{key} should be {in_words(hints[key])}; got {values[key]!r}.")
    return replace(default, **values)


def parse_options(given: Sequence[str]) -> dict[str, Any]:
    """Options such as ("dropout=0.2", "hidden=[200,200]") as a dict."""
    found = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals:
            raise OptionError(f"an option is written name=value; got {text!r}.")
        found[key.strip().replace("-", "_")] = registry.read_value(value)
    return found


def is_table(source: str) -> bool:
    """Whether data are a table: a known one, or a file of the user's."""
    return is_own_table(Path(source)) or source in _COLUMNS or source.startswith("uci/")


USUAL = {"language": "lstm", "segmentation": "unet"}
"""The network for a task that not every network can do."""


def _check_task(name: str, task: str) -> None:
    """Refuse a network of the zoo that gives other answers than the task asks for."""
    made_for = next((known for known, network in USUAL.items() if network == name), None)
    if made_for not in (None, task):
        raise OptionError(
            f"{name} is for {made_for}, and these data are for {task}: leave the network out (--network) to get one "
            "that fits, or see `covey networks`."
        )
    if task in USUAL and made_for is None and name in NETWORKS:
        raise OptionError(
            f"{name} gives one answer for a sample, and {task} needs more: {USUAL[task]} is the zoo's network for it."
        )


def usual_network(record: Mapping[str, Any]) -> str:
    """A small network that fits the data."""
    if record["task"] in USUAL:
        return USUAL[record["task"]]
    shape = record["shape"]
    return "convnet" if len(shape) == 3 and min(shape[1:]) >= 16 else "mlp"
