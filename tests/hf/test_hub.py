"""Ensembles go to the hub and come back; the hub is a folder here."""

from __future__ import annotations

import fnmatch
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_transformers import batch, bert, ensemble, stirred, transformers

import covey
from covey.errors import OptionError, StoreError
from covey.hf import pull, push
from covey.hf.hub import model_card
from covey.scores.record import Record
from covey.scores.running import score


class Hub:
    """The three calls of huggingface_hub.HfApi that are made, on a folder."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.made: dict[str, bool] = {}

    def create_repo(self, *, repo_id: str, private: bool, exist_ok: bool) -> None:
        assert exist_ok
        self.made.setdefault(repo_id, private)
        (self.place / repo_id).mkdir(parents=True, exist_ok=True)

    def upload_folder(
        self, *, repo_id: str, folder_path: str, commit_message: str, delete_patterns: list[str]
    ) -> str:
        for path in (self.place / repo_id).iterdir():
            if any(fnmatch.fnmatch(path.name, pattern) for pattern in delete_patterns):
                path.unlink()
        shutil.copytree(folder_path, self.place / repo_id, dirs_exist_ok=True)
        return f"https://hub/{repo_id}"

    def snapshot_download(
        self, *, repo_id: str, revision: str | None, local_dir: str, allow_patterns: list[str]
    ) -> str:
        for path in (self.place / repo_id).iterdir():
            if any(fnmatch.fnmatch(path.name, pattern) for pattern in allow_patterns):
                shutil.copy(path, local_dir)
        return local_dir


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    return Hub(tmp_path / "hub")


def test_the_stub_takes_what_the_hub_takes() -> None:
    import inspect

    api = pytest.importorskip("huggingface_hub").HfApi
    for name in ("create_repo", "upload_folder", "snapshot_download"):
        ours = set(inspect.signature(getattr(Hub, name)).parameters) - {"self"}
        assert ours <= set(inspect.signature(getattr(api, name)).parameters), name


def test_there_and_back(hub: Hub, tmp_path: Path) -> None:
    made = stirred(ensemble(bert())).eval()
    record = Record(torch.randn(3, 20, 3), torch.randint(3, (20,)))
    where = push(made, "me/tiny", evaluation=score(record), base="google/tiny-bert", private=True, api=hub)
    assert where == "https://hub/me/tiny"
    assert hub.made == {"me/tiny": True}
    found = pull("me/tiny", api=hub)
    assert torch.equal(found.eval()(**batch()), made(**batch()))
    card = (hub.place / "me/tiny/README.md").read_text()
    assert 'base_model: "google/tiny-bert"' in card
    assert "An ensemble of 3 members of `BertForSequenceClassification` by LowRank" in card
    assert 'covey.hf.pull("me/tiny")' in card
    assert "bert.encoder.layer.0.attention.self.query.weight" in card
    assert "accuracy" in card

    stirred(made)  # another version replaces the first
    push(made, "me/tiny", api=hub)
    (hub.place / "me/tiny/weights.pkl").write_bytes(b"not downloaded")
    again = pull("me/tiny", folder=tmp_path, api=hub)
    assert torch.equal(again.eval()(**batch()), made(**batch()))
    assert len(list(tmp_path.glob("tensors-*"))) == 1
    assert "No evaluation was stored" in (tmp_path / "README.md").read_text()


def test_a_network_of_ones_own_is_given(hub: Hub) -> None:
    network = torch.nn.Sequential(torch.nn.Linear(4, 3))
    made = covey.convert(network, covey.DeepEnsemble(members=2), example=torch.ones(2, 4)).eval()
    push(made, "mine", api=hub)
    assert "network=..." in (hub.place / "mine/README.md").read_text()
    with pytest.raises(StoreError, match="give its architecture"):
        pull("mine", api=hub)
    assert torch.equal(pull("mine", network=network, api=hub)(torch.ones(2, 4)), made(torch.ones(2, 4)))


@pytest.mark.parametrize(
    "task", ["classification", "multilabel", "regression", "gaussian", "quantiles(0.1, 0.9)"]
)
def test_a_card_asks_for_what_the_answer_has(task: str) -> None:
    network, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)), torch.ones(2, 4)
    made = covey.convert(network, covey.DeepEnsemble(members=2), example=x, task=task)
    answer = made.predict(x)
    asked = [line for line in model_card(made, "me/mine").splitlines() if line.startswith("answer.")]
    for attribute in asked[0].split(", "):
        assert isinstance(getattr(answer, attribute.removeprefix("answer.")), torch.Tensor)


def changed(hub: Hub, **changes: Any) -> None:
    path = hub.place / "me/tiny/network.json"
    stored = json.loads(path.read_text())
    config = {**stored["config"], **changes.pop("config", {})}
    path.write_text(json.dumps({**stored, **changes, "config": config}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"config": {"attn_implementation": "somebody/kernel"}}, "'attn_implementation', which could load code"),
        ({"config": {"auto_map": {"AutoModel": "evil.Network"}}}, "'auto_map', which could load code"),
        ({"config": {"nested": [{"_attn": 1}]}}, "'_attn', which could load code"),
        ({"class": "pipeline"}, "'pipeline', which is no network of transformers"),
        ({"class": "os.system"}, "'os.system', which is no network of transformers"),
        ({"config": {"num_hidden_layers": 10**9}}, "does not describe a network"),
        ({"config": {"hidden_size": "large"}}, "does not describe a network"),
        ({"config": {"num_labels": 7, "id2label": {}}}, "stored for another architecture|does not describe"),
    ],
)  # fmt: skip
def test_a_strangers_network(changes: dict[str, Any], words: str, hub: Hub) -> None:
    push(ensemble(bert()), "me/tiny", api=hub)
    changed(hub, **changes)
    with pytest.raises(StoreError, match=words):
        pull("me/tiny", api=hub)


def test_what_it_refuses(hub: Hub) -> None:
    for repo in ("", "a/b/c", "/a", "a/"):
        with pytest.raises(OptionError, match='repo is "user/name"'):
            pull(repo, api=hub)
    assert transformers  # the architecture is built by it
