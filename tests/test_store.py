from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import covey
from covey import zoo
from covey.errors import StoreError


def small(width: int = 8) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    covey.save(
        covey.convert(small(), covey.BatchEnsemble(members=3), example=torch.randn(2, 4)), tmp_path / "ens"
    )
    return tmp_path / "ens"


def test_everything_comes_back(tmp_path: Path) -> None:
    x = torch.randn(2, 4)
    ens = covey.convert(small(), covey.Masksembles(members=3), example=x, task="regression", seed=5).eval()
    ens.run = "batched"
    ens.to(torch.bfloat16).to(memory_format=torch.channels_last)
    covey.save(ens, tmp_path)
    back = covey.load(tmp_path, network=small())
    assert (back.method, back.run, back.layout) == (ens.method, "batched", ens.layout)
    assert (back.task, back.seed, back.output) == ("regression", 5, None)
    assert back.memory_format == torch.channels_last
    assert not back.training
    for (name, a), (_, b) in zip(ens.state_dict().items(), back.state_dict().items(), strict=True):
        assert a.dtype == b.dtype, name
        assert torch.equal(a, b), name
    assert [p.requires_grad for p in ens.parameters()] == [p.requires_grad for p in back.parameters()]


def test_networks_of_the_zoo_are_rebuilt_by_name(tmp_path: Path) -> None:
    net = zoo.create("convnet", classes=5, channels=1, image_size=8)
    x = torch.randn(2, 1, 8, 8)
    ens = covey.convert(net, covey.DeepEnsemble(members=2), example=x).eval()
    covey.save(ens, tmp_path)
    ens.run = "loop"
    back = covey.load(tmp_path)
    back.run = "loop"
    assert torch.equal(ens(x), back(x))
    notes = {row.note for row in ens.coverage.rows if row.role == "replicated"}
    assert notes == {"fresh as the zoo makes it"}


def test_saving_again_replaces_the_old_one_and_leaves_no_rubbish(stored: Path) -> None:
    covey.save(covey.convert(small(), covey.DeepEnsemble(members=2)), stored)
    assert covey.load(stored, network=small()).members == 2
    assert len(list(stored.iterdir())) == 2


def test_the_folder_holds_no_pickle_and_the_options_in_json(stored: Path) -> None:
    config = json.loads((stored / "config.json").read_text())
    assert config["method"] == "batch-ensemble"
    assert config["options"]["members"] == 3
    assert {p.suffix for p in stored.iterdir()} == {".json", ".safetensors"}


def _break(stored: Path, how: str) -> None:
    config, tensors = stored / "config.json", next(stored.glob("*.safetensors"))
    if how == "no config":
        config.unlink()
    elif how == "cut config":
        config.write_text(config.read_text()[:100])
    elif how == "no tensors":
        tensors.unlink()
    elif how == "cut tensors":
        tensors.write_bytes(tensors.read_bytes()[:-20])
    elif how == "other version":
        config.write_text(json.dumps({**json.loads(config.read_text()), "format": 99, "covey": "9.0"}))
    elif how == "pickle":
        (stored / "model.pt").write_bytes(b"\x80\x04.")
    elif how == "other method":
        config.write_text(json.dumps({**json.loads(config.read_text()), "method": "batch-ensembel"}))
    elif how == "lost key":
        left = {key: value for key, value in json.loads(config.read_text()).items() if key != "bodies"}
        config.write_text(json.dumps(left))
    elif how == "elsewhere":
        config.write_text(json.dumps({**json.loads(config.read_text()), "file": "../secret.safetensors"}))
    elif how == "no memory format":
        config.write_text(json.dumps({**json.loads(config.read_text()), "memory_format": "save"}))
    elif how == "other options":
        config.write_text(json.dumps({**json.loads(config.read_text()), "options": {"member": 3}}))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("no config", "has no config.json"),
        ("cut config", "broken or cut short"),
        ("no tensors", "lacks tensors-.*not copied whole"),
        ("cut tensors", "damaged or cut short"),
        ("other version", "format 99 .written by covey 9.0.*reads formats 1 and 2"),
        ("pickle", "contains model.pt, which looks like a pickle"),
        ("other method", "no method 'batch-ensembel'.*'batch-ensemble'"),
        ("lost key", "lacks 'bodies'. The file was changed"),
        ("elsewhere", "the file '../secret.safetensors'; expected .* file beside it"),
        ("no memory format", "memory_format should be one of .*; got 'save'"),
        ("other options", "'batch-ensemble' with its options cannot be made"),
    ],
)
def test_broken_folders_are_refused(stored: Path, how: str, words: str) -> None:
    _break(stored, how)
    with pytest.raises(StoreError, match=words):
        covey.load(stored, network=small())


def changed(stored: Path, *place: str | int, value: object) -> None:
    """Put another value into config.json."""
    config = json.loads((stored / "config.json").read_text())
    entry = config
    for step in place[:-1]:
        entry = entry[step]
    entry[place[-1]] = value
    (stored / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("file",), "..", "names the file '..'; expected a .safetensors file beside it"),
        (("file",), "a\0.safetensors", "expected a .safetensors file beside it"),
        (("file",), 3, "file should be a text; got 3"),
        (("method",), ["batch-ensemble"], "method should be a text; got"),
        (("options",), None, "options should be a table; got None"),
        (("options", "members"), 10**12, "options.members should be a whole number from 1 to 65536; got 1000000000000"),
        (("options", "members"), 10**30, "needs more than 64 bits|of 31 digits"),
        (("bodies",), [None], r"bodies\[0\] should be a table; got None"),
        (("bodies", 0, "tensors"), {"0.weight": None}, r"bodies\[0\].tensors.0.weight should be a list"),
        (("bodies", 0, "head"), ["nowhere"], None),
        (("layout", "tensors"), {}, "does not describe an ensemble that can be built: KeyError"),
        (("layout", "shared_buffers"), [], "does not describe an ensemble that can be built: IndexError"),
        (("layout", "facts"), [], "layout.facts should be a table"),
        (("runs",), {"train": "fast", "eval": "loop"}, "runs.train should be one of 'auto', 'loop', .*got 'fast'"),
        (("seed",), 1.5, "seed should be a whole number"),
        (("calibration",), [{"calibration": "temperature"}], r"calibration\[0\] lacks 'kind'"),
        (("tensors", "parts.shared.tensors.2 bias"), [[3], "float64"], "does not fit"),
    ],
)  # fmt: skip
def test_what_config_json_says_is_checked_before_it_is_used(
    stored: Path, place: tuple, value: object, words: str | None
) -> None:
    changed(stored, *place, value=value)
    if words is None:
        covey.load(stored, network=small())
        return
    with pytest.raises(StoreError, match=words):
        covey.load(stored, network=small())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"format": ' + "[" * 100_000, "broken or cut short"),
        ('{"format": ' + "[" * 200 + "]" * 200 + "}", "nested more than 48 deep"),
        ('{"format": 2, "seed": ' + "9" * 5_000 + "}", "a whole number of 5000 digits"),
        ('{"format": 2, "method": "\\ud800"}', "broken or cut short.*surrogates"),
        ("[2]", "has format None"),
        ('{"format": [2]}', r"has format \[2\]"),
    ],
)
def test_texts_that_are_no_config_are_refused(stored: Path, text: str, words: str) -> None:
    (stored / "config.json").write_text(text)
    with pytest.raises(StoreError, match=words):
        covey.load(stored, network=small())


@pytest.mark.timeout(60)
@pytest.mark.parametrize("which", ["config.json", "tensors"])
@pytest.mark.parametrize(
    ("kind", "words"),
    [("pipe", "no ordinary file"), ("device", "no ordinary file"), ("folder", "no ordinary file"),
     ("link", "is a link to .*, outside its folder"), ("circle", "is missing or cannot be read")],
)  # fmt: skip
def test_only_ordinary_files_of_the_folder_are_read(stored: Path, which: str, kind: str, words: str) -> None:
    file = stored / which if which == "config.json" else next(stored.glob("*.safetensors"))
    elsewhere = file.rename(stored.parent / file.name)
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    elif kind == "folder":
        file.mkdir()
    elif kind == "link":
        file.symlink_to(elsewhere)
    else:
        file.symlink_to(file.name)
    with pytest.raises(
        StoreError, match="has no config.json" if (which, kind) == ("config.json", "circle") else words
    ):
        covey.load(stored, network=small())


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("mlp", {"classes": 3, "features": 10**8, "hidden": [10**8, 10**8]}, "another architecture"),
        ("mlp", {"classes": 3, "features": 4, "hidden": [8] * 4000}, "far more tensors"),
        ("vit", {"classes": 3, "depth": 10**8}, "far more tensors than were stored"),
        ("pyramidnet", {"classes": 3, "depth": 200_000_000}, "far more tensors than were stored"),
        ("wrn-9999999994-1", {"classes": 3}, "no network 'wrn-9999999994-1'"),
        ("mlp", {"classes": 10**12, "features": 4}, "bodies.0..zoo.arguments.classes should be"),
        ("mlp", {"features": 4}, "does not describe an ensemble that can be built: TypeError"),
    ],
)
def test_large_networks_are_refused_before_memory_is_asked_for(
    tmp_path: Path, name: str, arguments: dict, words: str
) -> None:
    network = zoo.create("mlp", classes=3, features=4, hidden=(8,))
    covey.save(covey.convert(network, covey.DeepEnsemble(members=2), example=torch.randn(2, 4)), tmp_path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    changed(tmp_path, "bodies", 0, "zoo", value={"name": name, "arguments": arguments})
    with pytest.raises(StoreError, match=words):
        covey.load(tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # in KiB: 1 GiB


def test_a_tensor_file_of_another_dtype_is_refused(stored: Path) -> None:
    """The bytes are the same, so that only the dtype tells."""
    ensemble = covey.load(stored, network=small()).to(torch.float16)
    covey.save(ensemble, stored)
    config = json.loads((stored / "config.json").read_text())
    path = stored / config["file"]
    content = path.read_bytes()
    path.unlink()
    for code, words in (
        (b'"I16"', "should be .* of float16 and is .* of int16"),
        (b'"BF1"', "damaged or cut short"),
    ):
        other = content.replace(b'"F16"', code)
        digest = hashlib.sha256(other).hexdigest()
        name = f"tensors-{digest[:16]}.safetensors"
        (stored / name).write_bytes(other)
        (stored / "config.json").write_text(json.dumps({**config, "file": name, "sha256": digest}))
        with pytest.raises(StoreError, match=words):
            covey.load(stored, network=small())
    bare = {key: value for key, value in config.items() if key != "tensors"}  # as files before had it
    other = content.replace(b'"F16"', b'"I16"')
    digest = hashlib.sha256(other).hexdigest()
    bare |= {"file": f"tensors-{digest[:16]}.safetensors", "sha256": digest}
    (stored / "config.json").write_text(json.dumps(bare))
    with pytest.raises(StoreError, match="should be .* of floating point and is .* of int16"):
        covey.load(stored, network=small())


def test_another_architecture_is_refused_by_its_first_tensor(stored: Path) -> None:
    with pytest.raises(
        StoreError, match=r"another architecture: '0.weight' has shape \[8, 4\] there and \[9, 4\]"
    ):
        covey.load(stored, network=small(9))
    deeper = nn.Sequential(*small(), nn.Linear(3, 3))
    with pytest.raises(StoreError, match=r"'3.weight' has shape none"):
        covey.load(stored, network=deeper)
    with pytest.raises(StoreError, match=r"give its architecture: covey.load\(folder, network="):
        covey.load(stored)
    with pytest.raises(StoreError, match="is not a folder"):
        covey.load(stored / "nowhere")


def test_an_unwritable_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot save to"):
        covey.save(covey.convert(small(), covey.DeepEnsemble()), tmp_path / "file" / "ens")


_SAVER = """
import sys, torch, covey
from torch import Tensor, nn
ens = covey.convert(nn.Linear(300, 300), covey.DeepEnsemble(members=8))
print("ready", flush=True)
while True:
    for p in ens.parameters():
        p.data.add_(1.0)
    covey.save(ens, sys.argv[1])
"""


@pytest.mark.slow
def test_a_save_that_is_killed_leaves_a_whole_ensemble(tmp_path: Path) -> None:
    folder = tmp_path / "ens"
    covey.save(covey.convert(nn.Linear(300, 300), covey.DeepEnsemble(members=8)), folder)
    for pause in (0.0, 0.013, 0.031, 0.057):
        saver = subprocess.Popen([sys.executable, "-c", _SAVER, str(folder)], stdout=subprocess.PIPE)
        assert saver.stdout is not None
        saver.stdout.readline()
        time.sleep(pause)
        saver.send_signal(signal.SIGKILL)
        saver.wait()
        saver.stdout.close()
        back = covey.load(folder, network=nn.Linear(300, 300))
        shift = back.tensors(0)["weight"].detach().round().unique()
        assert len(shift) == 1 or shift.abs().max() <= 1  # every tensor is of the same save


class Shifts(nn.Module):
    """Keeps a constant, and a mask, where torch does not store them."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(4, 6), nn.Linear(6, 3)
        self.shift = [torch.arange(4.0) * by]
        self.mask = torch.tensor([0.0, 0, 0, 0, 0, -torch.inf])
        self.unread = torch.rand(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out((self.first(x + self.shift[0]) + self.mask).relu())


def test_a_network_with_other_constants_is_refused(tmp_path: Path) -> None:
    x = torch.randn(2, 4)
    ensemble = covey.convert(Shifts(1.0), covey.Replicate(members=2, noise=0.1), example=x)
    covey.save(ensemble, tmp_path)
    torch.testing.assert_close(covey.load(tmp_path, Shifts(1.0))(x), ensemble(x))
    with pytest.raises(StoreError, match=r"another tensor in 'shift\[0\]'.*register_buffer"):
        covey.load(tmp_path, Shifts(2.0))
