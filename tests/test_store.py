from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

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
        ("lost key", "lacks 'bodies'; it was changed"),
        ("elsewhere", "the file '../secret.safetensors'; expected .* a file beside it"),
        ("no memory format", "the memory format 'save'"),
        ("other options", "'batch-ensemble' with its options cannot be made"),
    ],
)
def test_broken_folders_are_refused(stored: Path, how: str, words: str) -> None:
    _break(stored, how)
    with pytest.raises(StoreError, match=words):
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
from torch import nn
ens = covey.convert(nn.Linear(300, 300), covey.DeepEnsemble(members=8))
print("ready", flush=True)
while True:
    for p in ens.parameters():
        p.data.add_(1.0)
    covey.save(ens, sys.argv[1])
"""


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
