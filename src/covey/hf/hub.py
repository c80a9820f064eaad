"""Ensembles on the Hugging Face hub: `save` and `load` with a repository in between."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from covey.ensemble import Ensemble
from covey.errors import OptionError
from covey.extras import load
from covey.files import write_text
from covey.hf.architecture import FILE, read_architecture, write_architecture
from covey.quantiles import Quantiles
from covey.store import CONFIG, save
from covey.store import load as load_ensemble
from covey.tables import counted
from covey.version import __version__

if TYPE_CHECKING:
    from covey.scores import Evaluation

_WANTED = [CONFIG, "tensors-*.safetensors", FILE, "README.md"]
"""The files of a repository that are read; whatever else it holds is left where it is."""


def push(
    ensemble: Ensemble,
    repo: str,
    *,
    evaluation: Evaluation | None = None,
    base: str | None = None,
    private: bool = False,
    message: str = "An ensemble by covey",
    api: Any = None,
) -> str:
    """Put an ensemble on the hub, with a model card made from its coverage and scores. Returns where it is.

    Args:
        ensemble: what `save` writes goes there: safetensors and JSON. The architecture of one of transformers' networks
            goes with it, so that `pull` needs nothing else.
        repo: "user/name"; it is made if it is not there.
        evaluation: what `covey.evaluate` measured, for the card.
        base: the pretrained network's name on the hub, for the card.
        private: whether a repository that is made can be seen by its owner alone.
        message: of the commit.
        api: what speaks with the hub; `huggingface_hub.HfApi()` by default, which finds the token you logged in with.
    """
    _check_repo(repo)
    hub = load("huggingface_hub").HfApi() if api is None else api
    with tempfile.TemporaryDirectory(prefix="covey-push-") as place:
        folder = Path(place)
        save(ensemble, folder)
        has_network = ensemble.stackable and write_architecture(ensemble.skeleton(), folder)
        card = model_card(ensemble, repo, evaluation=evaluation, base=base, has_network=has_network)
        write_text(folder / "README.md", card)
        hub.create_repo(repo_id=repo, private=private, exist_ok=True)
        done = hub.upload_folder(
            repo_id=repo,
            folder_path=str(folder),
            commit_message=message,
            delete_patterns=["tensors-*.safetensors"],  # those of the ensemble that was there before
        )
    return str(done)


def pull(
    repo: str,
    *,
    network: nn.Module | list[nn.Module] | None = None,
    revision: str | None = None,
    folder: str | Path | None = None,
    api: Any = None,
) -> Ensemble:
    """Read an ensemble from the hub. Files are a stranger's: no pickle, no code, compared with a schema before use.

    Args:
        repo: "user/name".
        network: the architecture, if it is neither the zoo's nor one of transformers'.
        revision: a branch, tag or commit; the newest by default. A commit's hash cannot change under you.
        folder: where the files go; by default to a folder that is gone afterwards.
        api: as in `push`.
    """
    _check_repo(repo)
    hub = load("huggingface_hub").HfApi() if api is None else api
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="covey-pull-"))
        # into a folder of its own: the hub's cache is made of links, and covey opens ordinary files only
        hub.snapshot_download(repo_id=repo, revision=revision, local_dir=str(folder), allow_patterns=_WANTED)
        if network is None:
            network = read_architecture(Path(folder))
        return load_ensemble(folder, network)


def model_card(
    ensemble: Ensemble,
    repo: str,
    *,
    evaluation: Evaluation | None = None,
    base: str | None = None,
    has_network: bool = False,
) -> str:
    """The README.md of a repository with an ensemble.

    Args:
        ensemble: what it is about.
        repo: where it is.
        evaluation: scores to show.
        base: the pretrained network's name on the hub.
        has_network: whether the architecture is stored beside it.
    """
    method = type(ensemble.method).__name__
    network = type(ensemble.skeleton()).__name__
    head = ["---", "library_name: covey", "tags:", "- covey", "- ensemble", "- uncertainty-quantification"]
    if base is not None:
        head.append(f"base_model: {json.dumps(base)}")
    head.append("---")
    needs = "" if has_network else ", network=..."
    members = counted(ensemble.members, "member")
    lines = [
        *head,
        "",
        f"# {repo}",
        "",
        f"An ensemble of {members} of `{network}` by {method}, made with covey {__version__}.",
        "It gives one answer and how sure it is of it.",
        "",
        "```python",
        "import covey",
        "",
        f"ensemble = covey.hf.pull({json.dumps(repo)}{needs})",
        "answer = ensemble.predict(...)  # what the network takes",
        *_asked(ensemble.task),
        "```",
        "",
        "## What it is made of",
        "",
        f"Options: `{ensemble.method}`",
        "",
        "```",
        str(ensemble.coverage),
        "```",
        "",
        "## How good it is",
        "",
        *_scores(evaluation),
    ]
    return "\n".join(lines) + "\n"


def _asked(task: str) -> list[str]:
    if task == "classification":
        return ["answer.probs, answer.entropy, answer.mutual_information"]
    if task == "multilabel":
        return ["answer.probs, answer.labels, answer.mutual_information"]
    if Quantiles.of(task) is not None:
        return ["answer.quantiles, answer.epistemic"]
    return ["answer.mean, answer.std, answer.epistemic"]


def _scores(evaluation: Evaluation | None) -> list[str]:
    if evaluation is None:
        return ["No evaluation was stored with it."]
    return ["```", str(evaluation), "```"]


def _check_repo(repo: str) -> None:
    if not isinstance(repo, str) or repo.count("/") > 1 or not repo.strip("/") or repo != repo.strip("/ "):
        raise OptionError(f'repo is "user/name", as the hub has it; got {repo!r}.')
