"""What is damaged and read: each target makes whole examples once, damages a copy and hands it to covey."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from damage import (
    copied,
    damage_bytes,
    damage_file,
    damage_json,
    joined,
    parts_of,
    removed,
    renamed,
    written,
)
from starlette.testclient import TestClient

import covey
from covey import zoo
from covey.cli import main, reading, recipes, run
from covey.cli.planned import from_recipe, planned_runs
from covey.cli.settings import trained
from covey.data import Data, Split, load
from covey.data.download import Remote, _place
from covey.data.inputs import read_inputs
from covey.data.layouts import read_idx
from covey.errors import CoveyError
from covey.report import write
from covey.scores import Evaluation
from covey.scores.record import Record
from covey.scores.robustness import read_cifar_c
from covey.serving import Limits, Model, application

STORED = Path(__file__).parents[1] / "stored"
QUIET = covey.Machine(accelerator="cpu", progress=False)


class RefusedError(CoveyError):
    """A command ended with a sentence for its user."""


class Target:
    """Whole examples in `base`, and damaged copies in `place`."""

    def __init__(self, base: Path, place: Path) -> None:
        self.base, self.place = base, place
        self.elsewhere = place.with_name("elsewhere")
        removed(base)  # what another worker made, which was killed
        base.mkdir(parents=True)
        self.make()

    def make(self) -> None:
        """Make whole examples, and check that they can be read."""

    def damage(self, draw: Random) -> str:
        """Put a damaged copy into `place`; says what was done."""
        raise NotImplementedError

    def read(self, draw: Random) -> Any:
        """Let covey read it."""
        raise NotImplementedError


def command(*words: object) -> None:
    """A command of covey's; a RefusedError where it says what is wrong."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main.main([str(word) for word in words])
    if code == 2:
        raise RefusedError(err.getvalue())
    if code:
        raise AssertionError(f"exit code {code}: {err.getvalue()}")


class Ensembles(Target):
    """Stored ensembles: of the first format and of this one, with networks given and with the zoo's."""

    KEPT = (
        "batch-ensemble", "calibrated-pooled", "calibrated-members", "fit-mimo", "hypernetwork", "masksembles",
        "mixture", "fit-superweights", "packed", "fit-slimmable", "fit-swag", "lstm", "mc-dropout", "shapeshifter",
        "multi-head",
    )  # fmt: skip

    def make(self) -> None:
        sys.path.insert(0, str(STORED))
        import networks

        about = json.loads((STORED / "first" / "ensembles.json").read_text())
        self.cases: dict[str, tuple[Any, Any]] = {}
        from safetensors.torch import load_file

        for name in self.KEPT:
            if name not in about:
                continue
            first = STORED / "first" / "ensembles" / name
            network = networks.build(about[name]["network"])
            x = load_file(first.parent / f"{name}.safetensors")["x"]
            shutil.copytree(first, self.base / f"{name}-1", dirs_exist_ok=True)
            covey.save(covey.load(first, network=network), self.base / f"{name}-2")
            self.cases[f"{name}-1"] = self.cases[f"{name}-2"] = (network, x)
        for name, options in (
            ("mlp", {"features": 6, "hidden": (8,)}), ("convnet", {"channels": 1, "image_size": 8}),
            ("lstm", {"hidden": 8, "embedding": 4}),
        ):  # fmt: skip
            network = zoo.create(name, classes=3, **options)
            x = {"mlp": torch.randn(2, 6), "convnet": torch.randn(2, 1, 8, 8)}.get(
                name, torch.zeros(2, 5).long()
            )
            method = covey.DeepEnsemble(members=2) if name == "convnet" else covey.BatchEnsemble(members=3)
            covey.save(covey.convert(network, method, example=x), self.base / f"zoo-{name}-2")
            self.cases[f"zoo-{name}-2"] = (None, x)
        for name, (network, x) in self.cases.items():
            covey.load(self.base / name, network=network).predict(x)

    def damage(self, draw: Random) -> str:
        self.name = draw.choice(sorted(self.cases))
        place = copied(self.base / self.name, self.place)
        config, tensors = place / "config.json", next(place.glob("*.safetensors"))
        how = draw.random()
        if how < 0.65:
            return f"{self.name} config {damage_file(config, draw, self.elsewhere)}"
        if how < 0.8:
            return f"{self.name} tensors {damage_file(tensors, draw, self.elsewhere)}"
        header, rest = parts_of(tensors.read_bytes())
        changed = damage_json(header, draw) if draw.random() < 0.8 else header
        rest = rest if draw.random() < 0.8 else damage_bytes(rest, draw)
        tensors.unlink()
        path = renamed(place, "tensors", joined(changed, rest))
        stored = json.loads(config.read_text())
        if draw.random() < 0.5:
            stored.pop("tensors", None)
        config.write_text(json.dumps({**stored, "file": path.name}))
        return f"{self.name} header"

    def read(self, draw: Random) -> Any:
        network, x = self.cases[self.name]
        ensemble = covey.load(self.place, network=network)
        if ensemble.run == "auto":
            ensemble.run = "loop"  # which of the two is faster need not be measured
        return ensemble.predict(x)


class Runs(Target):
    """Folders of runs: settings, evaluation, outputs, cost and history, by the commands that read them."""

    FILES = ("settings.json", "evaluation.json", "outputs.npz", "cost.json", "history.jsonl", "history.csv")

    def make(self) -> None:
        source = STORED / "first" / "commands" / "batch-ensemble"
        for name in ("batch-ensemble", "late-phase"):
            folder = self.base / name
            shutil.copytree(STORED / "first" / "commands" / name / "run", folder, dirs_exist_ok=True)
            ensemble, data = (
                reading.read_ensemble(folder),
                reading.settings_of(reading.read_settings(folder)).dataset.load(),
            )
            run.measure_cost(folder, ensemble, data)
        self.x = source / "x.npy"
        command("show", folder)
        command("predict", folder, self.x)
        write([run.result(folder, "a method", 0)], self.base.with_name("page"))

    def damage(self, draw: Random) -> str:
        place = copied(self.base / draw.choice(("batch-ensemble", "late-phase")), self.place)
        name = draw.choice((*self.FILES[:2] * 3, *self.FILES))
        return f"{name} {damage_file(place / name, draw, self.elsewhere)}"

    def read(self, draw: Random) -> Any:
        how = draw.random()
        if how < 0.3:
            return command("show", self.place)
        if how < 0.6:
            return command("predict", self.place, self.x)
        if how < 0.63:
            return command("evaluate", self.place, "--no-report")
        found = run.result(self.place, "a method", 0)
        (
            str(found.evaluation),
            repr(found.evaluation),
            found.evaluation._repr_html_(),
            run.headline(found.evaluation),
        )
        if how < 0.66:
            return write([found], self.place.with_name("page"))
        return Evaluation.load(self.place)


class Checkpoints(Target):
    """Interrupted runs, which are resumed."""

    def make(self) -> None:
        generator = torch.Generator().manual_seed(0)
        part = Split(torch.randn(24, 4, generator=generator), torch.arange(24) % 3)
        self.data = Data(part, part, part, task="classification", classes=("a", "b", "c"), shape=(4,))
        self.recipe = covey.Recipe(epochs=2, batch=8, lr=0.05, run="loop", checkpoint=1, ema=0.9, keep="best")
        plain = covey.Recipe(epochs=4, batch=8, lr=0.05, run="loop", optimizer="adam")
        self.ways: dict[str, tuple[Any, covey.Recipe]] = {
            "batch-ensemble": (covey.BatchEnsemble(members=2), self.recipe),
            "swag": (covey.SWAG(members=2, start=0.5), plain),
            "late-phase": (covey.LatePhase(members=2, start=0.5, kind="rank-one"), plain),
        }
        for name in self.ways:
            self._fit(name, self.base / name, resume=False)
            newest = sorted((self.base / name / "checkpoints").iterdir())[-1]
            newest.unlink()  # so that there is something left to do
            shutil.rmtree(self.base / name / "ensemble")

    def _fit(self, name: str, folder: Path, *, resume: bool) -> Any:
        way, recipe = self.ways[name]
        network = zoo.create("mlp", classes=3, features=4, hidden=(6,))
        return covey.fit(network, self.data, recipe, method=way, folder=folder, machine=QUIET, resume=resume)

    def damage(self, draw: Random) -> str:
        self.name = draw.choice(sorted(self.ways))
        place = copied(self.base / self.name, self.place)
        (path,) = (place / "checkpoints").iterdir()
        how = draw.random()
        if how < 0.15:
            return f"{self.name} {damage_file(path, draw, self.elsewhere)}"
        header, rest = parts_of(path.read_bytes())
        prefix = path.name[:10]
        if how < 0.7:  # another record
            about = damage_json(json.loads(header["__metadata__"]["covey"]), draw)
            header["__metadata__"]["covey"] = json.dumps(about)
        else:
            header = damage_json(header, draw)
        path.unlink()
        renamed(path.parent, prefix, joined(header, rest))
        return f"{self.name} record"

    def read(self, draw: Random) -> Any:
        return self._fit(self.name, self.place, resume=True)


class Weights(Target):
    """A file of weights that a network is to start from."""

    def make(self) -> None:
        network = zoo.create("mlp", classes=3, features=4, hidden=(6,))
        from safetensors.torch import save_file

        save_file(network.state_dict(), self.base / "network.safetensors")
        trained(network, self.base / "network.safetensors")

    def damage(self, draw: Random) -> str:
        path = copied(self.base, self.place) / "network.safetensors"
        if draw.random() < 0.5:
            return damage_file(path, draw, self.elsewhere)
        header, rest = parts_of(path.read_bytes())
        path.write_bytes(joined(damage_json(header, draw), rest))
        return "header"

    def read(self, draw: Random) -> Any:
        network = zoo.create("mlp", classes=3, features=4, hidden=(6,))
        return trained(network, self.place / "network.safetensors")


def as_toml(value: Any, name: str = "") -> str:
    """A JSON value as TOML; whatever TOML does not know becomes a text."""
    plain, tables = [], []
    for key, inner in value.items():
        if isinstance(inner, dict):
            tables.append(as_toml(inner, f"{name}.{json.dumps(key)}" if name else json.dumps(key)))
        else:
            plain.append(f"{json.dumps(key)} = {_toml_value(inner)}")
    return "\n".join([*([f"[{name}]"] if name else []), *plain, *tables])


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    return "false" if value is None else json.dumps(value)


class Recipes(Target):
    """Recipe files."""

    def make(self) -> None:
        self.files = sorted(recipes.folder().glob("*.toml"))

    def damage(self, draw: Random) -> str:
        removed(self.place)
        self.place.mkdir()
        path = self.place / "recipe.toml"
        source = draw.choice(self.files)
        path.write_bytes(source.read_bytes())
        if draw.random() < 0.3:
            return f"{source.stem} {damage_file(path, draw, self.elsewhere)}"
        table = damage_json(recipes.tomllib.loads(source.read_text()), draw)
        if not isinstance(table, dict):
            table = {"about": table}
        text = as_toml(table).replace('"five thousand digits"', "9" * 5000)
        path.write_text(text, errors="surrogatepass")
        return f"{source.stem} toml"

    def read(self, draw: Random) -> Any:
        file = recipes.read(str(self.place / "recipe.toml"))
        str(file.about.get("title"))
        for scale in ("full", "small"):
            flags, base = from_recipe(file, scale)
            planned_runs(base, flags)


class Tables(Target):
    """Tables to train on, and to predict."""

    def make(self) -> None:
        import pandas

        draw = np.random.default_rng(0)
        frame = pandas.DataFrame(
            {
                "size": draw.normal(size=40), "count": draw.integers(0, 9, 40),
                "kind": draw.choice(["a", "b", "é"], 40),
                "day": pandas.date_range("2020-01-01", periods=40).astype(str), "flag": draw.random(40) < 0.5,
                "y": draw.normal(size=40),
            }
        )  # fmt: skip
        frame.loc[3, "size"] = np.nan
        for name, separator in (("comma.csv", ","), ("semicolon.csv", ";"), ("tab.tsv", "\t")):
            frame.to_csv(self.base / name, sep=separator, index=False)
        frame.to_parquet(self.base / "table.parquet")
        self.record = load(str(self.base / "comma.csv"), target="y").record
        self.files = sorted(path.name for path in self.base.iterdir())

    def damage(self, draw: Random) -> str:
        self.file = copied(self.base, self.place) / draw.choice(self.files)
        return f"{self.file.name} {damage_file(self.file, draw, self.elsewhere)}"

    def read(self, draw: Random) -> Any:
        if draw.random() < 0.5:
            return read_inputs(self.file, self.record)
        return load(str(self.file), target="y", task=draw.choice((None, "classification", "regression")))


class Arrays(Target):
    """Arrays to train on and to predict, members' outputs, and published corruption and idx files."""

    def make(self) -> None:
        draw = np.random.default_rng(0)
        images, labels = draw.integers(0, 255, (40, 8, 8)).astype(np.uint8), draw.integers(0, 3, 40)
        np.savez(self.base / "images.npz", x=images, y=labels)
        np.savez_compressed(self.base / "packed.npz", x=images, y=labels)
        np.savez(self.base / "table.npz", x_train=draw.normal(size=(30, 4)), y_train=draw.normal(size=30))
        np.save(self.base / "x.npy", images[:5])
        np.save(self.base / "fog.npy", draw.integers(0, 255, (10, 4, 4, 3)).astype(np.uint8))
        np.save(self.base / "labels.npy", draw.integers(0, 3, 10))
        (self.base / "digits-idx3-ubyte").write_bytes(
            b"\0\0\x08\x03" + np.array([5, 8, 8], ">u4").tobytes() + images[:5].tobytes()
        )
        Record(torch.randn(2, 12, 3), torch.arange(12) % 3, ood={"far": torch.randn(2, 4, 3)}).save(
            self.base / "outputs.npz"
        )
        self.record = load(str(self.base / "images.npz")).record
        self.files = sorted(path.name for path in self.base.iterdir())

    def damage(self, draw: Random) -> str:
        self.file = copied(self.base, self.place) / draw.choice(self.files)
        if self.file.suffix == ".npz" and draw.random() < 0.4:
            return f"{self.file.name} {self._repack(draw)}"
        return f"{self.file.name} {damage_file(self.file, draw, self.elsewhere)}"

    def _repack(self, draw: Random) -> str:
        """An archive that is whole, with a damaged array in it."""
        with zipfile.ZipFile(self.file) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        name = draw.choice(sorted(members))
        members[name] = damage_bytes(members[name], draw)
        with zipfile.ZipFile(self.file, "w") as archive:
            for each, content in members.items():
                archive.writestr(each, content)
        return "array"

    def read(self, draw: Random) -> Any:
        if self.file.name == "outputs.npz":
            return covey.scores.score(Record.load(self.file))
        if self.file.name in ("fog.npy", "labels.npy"):
            return read_cifar_c(self.place, "fog", draw.randint(1, 5))
        if self.file.name.endswith("ubyte"):
            return read_idx(self.file)
        if self.file.suffix == ".npy" or draw.random() < 0.5:
            return read_inputs(self.file, self.record)
        return load(str(self.file))


class Images(Target):
    """Folders of images, one for each class."""

    ENDINGS = ("png", "jpg", "bmp", "gif", "webp", "tiff", "ppm")

    def make(self) -> None:
        from PIL import Image

        draw = np.random.default_rng(0)
        for number in range(24):
            folder = self.base / ("cats", "dogs")[number % 2]
            folder.mkdir(exist_ok=True)
            pixels = draw.integers(0, 255, (9, 10, 3)).astype(np.uint8)
            with contextlib.suppress(OSError, KeyError, ValueError):
                Image.fromarray(pixels).save(
                    folder / f"{number}.{self.ENDINGS[number // 2 % len(self.ENDINGS)]}"
                )
        self.record = load(str(self.base), image_size=8).record
        self.files = sorted(str(p.relative_to(self.base)) for p in self.base.rglob("*") if p.is_file())

    def damage(self, draw: Random) -> str:
        self.file = copied(self.base, self.place) / draw.choice(self.files)
        return f"{self.file.name} {damage_file(self.file, draw, self.elsewhere)}"

    def read(self, draw: Random) -> Any:
        if draw.random() < 0.5:
            return read_inputs(self.file, self.record)
        return load(str(self.place), image_size=8, skip_bad=draw.random() < 0.5)


class Archives(Target):
    """Archives as a server sends them, which are unpacked."""

    def make(self) -> None:
        content = {"a.txt": b"text" * 100, "folder/b.bin": bytes(range(256)) * 4}
        with zipfile.ZipFile(self.base / "files.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for name, body in content.items():
                archive.writestr(name, body)
        for name, mode in (("files.tar", "w"), ("files.tar.gz", "w:gz"), ("files.tar.xz", "w:xz")):
            with tarfile.open(self.base / name, mode) as tar:
                for member, body in content.items():
                    info = tarfile.TarInfo(member)
                    info.size = len(body)
                    tar.addfile(info, io.BytesIO(body))

    def damage(self, draw: Random) -> str:
        self.file = copied(self.base, self.place) / draw.choice(sorted(p.name for p in self.base.iterdir()))
        self.file.write_bytes(damage_bytes(self.file.read_bytes(), draw))
        return f"{self.file.name} bytes"

    def read(self, draw: Random) -> Any:
        remote = Remote(("http://nowhere",), None, "out", archive=True)
        return _place(remote, self.file, self.place, "http://nowhere")


class Requests(Target):
    """What strangers send to a service: its own paths and those of the Open Inference Protocol."""

    def make(self) -> None:
        torch.manual_seed(0)
        network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        ens = covey.convert(network, covey.BatchEnsemble(members=2), example=torch.zeros(2, 4)).eval()
        record = {
            "task": "classification", "classes": ["a", "b", "c"], "shape": [4], "columns": [],
            "normalisation": None, "target_normalisation": None,
        }  # fmt: skip
        app = application(Model(ensemble=ens, record=record, defer=0.5), Limits())
        self.client = TestClient(app).__enter__()  # as long as the process lives
        name = self.client.get("/metadata").json()["name"]
        rows = [[0.1, 0.2, 0.3, 0.4], [1.0, -1.0, 0.0, 2.0]]
        tensor = {"name": "x", "shape": [2, 4], "datatype": "FP32", "data": rows}
        self.whole = {
            "/predict": {"inputs": rows, "members": True},
            f"/v2/models/{name}/infer": {"id": "1", "inputs": [tensor]},
        }
        for path, body in self.whole.items():
            assert self.client.post(path, json=body).status_code == 200, path

    def damage(self, draw: Random) -> str:
        self.path = draw.choice(sorted(self.whole))
        body = self.whole[self.path]
        self.type = "application/json"
        if draw.random() < 0.7:
            self.body = written(damage_json(body, draw)).encode()
            return f"{self.path} JSON"
        self.body = damage_bytes(json.dumps(body).encode(), draw)
        self.type = draw.choice([self.type, self.type, "multipart/form-data; boundary=x", "text/plain", ""])
        return f"{self.path} bytes as {self.type!r}"

    def read(self, draw: Random) -> Any:
        answer = self.client.post(self.path, content=self.body, headers={"content-type": self.type})
        if answer.status_code == 500:
            raise RuntimeError(answer.text)
        if answer.status_code != 200:
            raise RefusedError(answer.json()["error"])
        return answer.json()


TARGETS: dict[str, Callable[[Path, Path], Target]] = {
    "ensembles": Ensembles,
    "runs": Runs,
    "checkpoints": Checkpoints,
    "weights": Weights,
    "recipes": Recipes,
    "tables": Tables,
    "arrays": Arrays,
    "images": Images,
    "archives": Archives,
    "requests": Requests,
}
