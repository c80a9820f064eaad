"""Write the fixtures in `first/`: what covey 0.1.0 stores, and what its ensembles answered.

It ran once, with that version, and is kept as the record of how the fixtures came about; later code is held to the
fixtures and not to this script, whose imports may no longer exist.

    OMP_NUM_THREADS=1 PYTHONPATH=src python tests/stored/make.py
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from covey.evaluate import fit_conformal, fit_temperature
from safetensors.torch import save_file
from torch import Tensor, nn

import covey
import networks
from covey import zoo
from covey.data import Data, Split
from covey.train import checkpoint

HERE = Path(__file__).parent
FIRST = HERE / "first"
QUIET = covey.Machine(accelerator="cpu", progress=False)


def vectors(batch: int = 5) -> Tensor:
    return torch.randn(batch, 6, generator=torch.Generator().manual_seed(1))


def images(batch: int = 3) -> Tensor:
    return torch.randn(batch, 2, 8, 8, generator=torch.Generator().manual_seed(1))


def tokens(batch: int = 3) -> Tensor:
    return torch.randint(0, 11, (batch, 5), generator=torch.Generator().manual_seed(1))


# --- ensembles that were converted -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A network by name, how to make it an ensemble, and an input."""

    network: str | None
    method: Any
    x: Callable[[], Tensor] = vectors
    options: dict[str, Any] = field(default_factory=dict)  # of convert()


CONVERTED: dict[str, Case] = {
    "replicate": Case("mlp", covey.Replicate(members=3, noise=0.2)),
    "replicate-where": Case("convnet", covey.Replicate(members=3, where=["norms", "3.weight"]), images),
    "replicate-fresh": Case("normed", covey.Replicate(members=2, where=r"4\..*", init="fresh")),
    "deep-ensemble": Case("convnet", covey.DeepEnsemble(members=2), images),
    "multi-head": Case("mlp", covey.MultiHead(members=3)),
    "norm-ensemble": Case("convnet", covey.NormEnsemble(members=3, noise=0.1), images),
    "batch-ensemble": Case("convnet", covey.BatchEnsemble(members=3), images),
    "batch-ensemble-sign": Case(
        "normed", covey.BatchEnsemble(members=3, init="sign", norms="shared", where=("0", "4"), gamma=0.5)
    ),
    "batch-ensemble-transformer": Case("transformer", covey.BatchEnsemble(members=2), images),
    "masksembles": Case("convnet", covey.Masksembles(members=3), images),
    "masksembles-mlp": Case("mlp", covey.Masksembles(members=2, scale=1.5)),
    "mimo": Case("convnet", covey.MIMO(members=3), images),
    "mimo-copy": Case("mlp", covey.MIMO(members=2, init="copy", repeats=2, rho=0.5)),
    "mc-dropout": Case("dropout", covey.MCDropout(members=4)),
    "mc-dropout-after": Case("convnet", covey.MCDropout(members=3, p=0.4, after=("2", "5")), images),
    "hypernetwork": Case("blocks", covey.Hypernetwork(members=3, budget=None, sizes=(2, 2, 3)), images),
    "hypernetwork-linear": Case(
        "mlp", covey.Hypernetwork(members=2, linear=True, budget=3.0, norms="shared")
    ),
    "mixture": Case("blocks", covey.Mixture(members=3, budget=3.0), images),
    "mixture-disjoint": Case(
        "blocks",
        covey.Mixture(members=2, budget=3.0, templates=2, assign="disjoint", singles="bank"),
        images,
    ),
    "mixture-flat": Case("two-groups", covey.Mixture(members=2, budget=420, templates=3), images),
    "superweights": Case("shapes", covey.SuperWeights(budget=2.0), images),
    "superweights-layers": Case(
        "shapes", covey.SuperWeights(budget=2.0, share="layers", clusters="shape"), images
    ),
    "superweights-exploring": Case("shapes", covey.SuperWeights(budget=2.0, refine_at=3), images),
    "superweights-one": Case("blocks", covey.SuperWeights(members=3, budget=2.0), images),
    "shapeshifter": Case("shapes", covey.ShapeShifter(budget=2.0), images),
    "shapeshifter-one": Case("blocks", covey.ShapeShifter(members=3, budget=3.0, bins=2), images),
    "slimmable": Case("widths", covey.Slimmable(), images),
    "slimmable-universal": Case("widths", covey.Slimmable(norms="shared", widths=2), images),
    "packed": Case("mlp", covey.Packed(members=4, alpha=2.0)),
    "packed-batch-norm": Case("convnet", covey.Packed(members=4, alpha=2.0), images),
    "packed-subgroups": Case("pointwise", covey.Packed(members=2, alpha=1.0, gamma=2), images),
    "packed-slice": Case("convnet", covey.Packed(members=2, alpha=1.5, init="slice"), images),
    "packed-transformer": Case("transformer", covey.Packed(members=2, alpha=1.0), images),
    "tied": Case("tied", covey.BatchEnsemble(members=2), tokens),
    "tied-copies": Case("tied", covey.DeepEnsemble(members=2), tokens),
    "lstm": Case("lstm", covey.BatchEnsemble(members=2), tokens),
    "lstm-copies": Case("lstm", covey.Replicate(members=2, noise=0.1), tokens),
    "output-key": Case("auxiliary", covey.BatchEnsemble(members=3), images, {"output": "logits"}),
    "output-key-made": Case("auxiliary", covey.SuperWeights(members=2, budget=4.0), images, {"output": "logits"}),
    "output-position": Case("twice", covey.BatchEnsemble(members=2), vectors, {"output": 1}),
    "regression": Case("number", covey.DeepEnsemble(members=3), vectors, {"task": "regression"}),
    "gaussian": Case("gaussian", covey.BatchEnsemble(members=3), vectors, {"task": "gaussian", "seed": 7}),
    "class-axis": Case("map", covey.DeepEnsemble(members=2), images, {"class_dim": 1}),
    "bare-parameters": Case("frozen", covey.Replicate(members=2, noise=0.3)),
    "double": Case("mlp-double", covey.BatchEnsemble(members=2), lambda: vectors().double()),
}  # fmt: skip


def shaken(ensemble: covey.Ensemble, x: Tensor) -> covey.Ensemble:
    """Two steps of training on noise, so that neither weights nor running statistics are those of a new ensemble."""
    ensemble.run = "loop"
    ensemble.train()
    step = torch.optim.SGD(ensemble.param_groups(0.05))
    for _ in range(2):
        step.zero_grad()
        (ensemble(x) - 1).square().mean().backward()
        step.step()
    ensemble.run = "auto"
    return ensemble.eval()


def converted(case: Case) -> covey.Ensemble:
    network, x = networks.build(case.network), case.x()
    torch.manual_seed(0)
    return shaken(covey.convert(network, case.method, example=x, **case.options), x)


def special() -> dict[str, tuple[str | None, covey.Ensemble, Tensor]]:
    """Ensembles that need more than convert(): (name of the network, ensemble, input) by name."""
    made: dict[str, tuple[str | None, covey.Ensemble, Tensor]] = {}
    x = vectors(40)
    for kind in ("pooled", "members"):
        ensemble = converted(Case("mlp", covey.DeepEnsemble(members=3)))
        with torch.no_grad():
            for parameter in ensemble.parameters():
                parameter.mul_(3)
        ensemble.run = "loop"
        y = ensemble.predict(x).label
        y[::5] = (y[::5] + 1) % 3  # so that it is right four times out of five
        ensemble.temperature = fit_temperature(ensemble.predict(x).logits, y, kind=kind)
        ensemble.conformal = fit_conformal(ensemble.predict(x).probs, y, alpha=0.3)
        made[f"calibrated-{kind}"] = "mlp", ensemble, vectors()
    torch.manual_seed(0)
    mlp = zoo.create("mlp", classes=3, features=6, hidden=[8])
    made["zoo"] = None, shaken(covey.convert(mlp, covey.BatchEnsemble(members=2), example=x), x), vectors()
    torch.manual_seed(0)
    wide = zoo.create("mlp", classes=3, features=6, hidden=[8, 8])
    method = covey.Packed(members=2, alpha=1.0)
    made["zoo-packed"] = None, shaken(covey.convert(wide, method, example=x), x), vectors()
    ensemble = converted(Case("convnet", covey.BatchEnsemble(members=2), images))
    made["channels-last"] = "convnet", ensemble.to(memory_format=torch.channels_last), images()
    narrow = networks.build("convnet-narrow")
    given = covey.Packed(members=2, narrow=narrow)
    ensemble = covey.convert(networks.build("convnet"), given, example=images())
    made["packed-given"] = "convnet-narrow", shaken(ensemble, images()), images()
    ensemble = converted(CONVERTED["norm-ensemble"]).train()
    ensemble.runs = {"train": "loop", "eval": "batched"}
    made["train-mode"] = "convnet", ensemble, images()
    apart = []
    for seed in range(2):
        torch.manual_seed(seed)
        network = networks.build("normed")
        for parameter in network.parameters():
            nn.init.normal_(parameter, std=0.5)
        network(vectors(20))
        apart.append(network.eval())
    made["gathered"] = "normed", covey.gather(apart).eval(), vectors()
    return made


# --- ensembles that were trained --------------------------------------------------------------------------------


def blobs(samples: int = 40) -> Data:
    draw = torch.Generator().manual_seed(0)
    centres = 2 * torch.randn(3, 6, generator=draw)

    def split(count: int) -> Split:
        y = torch.randint(3, (count,), generator=draw)
        return Split(centres[y] + torch.randn(count, 6, generator=draw), y)

    return data_of({"train": split(samples), "validation": split(12), "test": split(12)}, (6,))


def pictures(samples: int = 24) -> Data:
    draw = torch.Generator().manual_seed(0)

    def split(count: int) -> Split:
        y = torch.arange(count) % 3
        return Split(torch.randn(count, 2, 8, 8, generator=draw) + y[:, None, None, None], y)

    return data_of({"train": split(samples), "validation": split(6), "test": split(6)}, (2, 8, 8))


def data_of(splits: dict[str, Split], shape: tuple[int, ...]) -> Data:
    record = {"source": "stored", "indices_sha256": {"train": "0"}}
    return Data(**splits, task="classification", classes=tuple("abc"), shape=shape, record=record)


RECIPE: dict[str, Any] = {"epochs": 3, "batch": 8, "lr": 0.1, "run": "loop"}
TRAINED: dict[str, tuple[str, Any, Callable[[], Data], dict[str, Any]]] = {
    "fit-single": ("normed", None, blobs, {"average": 1}),
    "fit-late-phase": ("normed", covey.LatePhase(members=3, start=1, noise=0.1), blobs, {}),
    "fit-late-phase-rank-one": (
        "normed", covey.LatePhase(members=3, kind="rank-one", start=1, noise=0.1, collapse=False), blobs, {},
    ),
    "fit-late-phase-embeddings": (
        "blocks", covey.LatePhase(members=2, kind="embeddings", start=1), pictures, {},
    ),
    "fit-economical": ("blocks", covey.Economical(members=2, start=1, sizes=(2, 2, 3)), pictures, {}),
    "fit-late": ("convnet", covey.late(covey.NormEnsemble(members=3), 2, 0.2), pictures, {}),
    "fit-swag": ("normed", covey.SWAG(members=4, start=1, rank=2), blobs, {"epochs": 4}),
    "fit-snapshot": ("normed", covey.Snapshot(members=2), blobs, {"epochs": 4}),
    "fit-fge": ("normed", covey.FGE(start=1, cycle=2), blobs, {"epochs": 4}),
    "fit-mimo": ("mlp", covey.MIMO(members=2, repeats=2), blobs, {"plan": "same"}),
    "fit-superweights": (
        "shapes", covey.SuperWeights(budget=3.0, refine_at=1, decouple_at=1, tau=0.3, beta=0.95), pictures,
        {"epochs": 4, "lr": 0.02},
    ),
    "fit-slimmable": ("widths", covey.Slimmable(norms="shared", widths=2), pictures, {"lr": 0.02}),
}  # fmt: skip


def trained(name: str) -> tuple[str, covey.Ensemble, Tensor]:
    network, method, data, changes = TRAINED[name]
    recipe, found = covey.Recipe(**{**RECIPE, **changes}), data()
    torch.manual_seed(0)
    ensemble = covey.fit(networks.build(network), found, recipe, method=method, machine=QUIET).ensemble
    return network, ensemble, found.test.inputs[:5].clone()


# --- what is written of them ------------------------------------------------------------------------------------


@torch.no_grad()
def answers(ensemble: covey.Ensemble, x: Tensor) -> dict[str, Tensor]:
    """Outputs of all members and the combined answer, in eval mode, the loop over members asked for."""
    ensemble.eval()
    ensemble.run = "loop"
    torch.manual_seed(0)  # directly before each call, since MC-dropout is random
    found = {"outputs": ensemble(x)}
    torch.manual_seed(0)
    answer = ensemble.predict(x)
    names = ("probs",) if isinstance(answer, covey.Prediction) else ("mean", "variance")
    if ensemble.conformal is not None:
        names += ("sets",)
    found |= {f"predict.{name}": getattr(answer, name) for name in names}
    return {name: tensor.contiguous().clone() for name, tensor in found.items()}


def write_ensemble(name: str, network: str | None, ensemble: covey.Ensemble, x: Tensor) -> dict[str, Any]:
    folder = FIRST / "ensembles" / name
    ensemble.save(folder)
    # a loaded ensemble is asked, since memory that is aligned otherwise can give other last bits
    loaded = covey.load(folder, network=networks.build(network))
    found = answers(loaded, x)
    torch.testing.assert_close(answers(ensemble, x), found)
    save_file({"x": x, **found}, folder.with_suffix(".safetensors"))
    return {"network": network}


# --- runs that were interrupted ---------------------------------------------------------------------------------


class InterruptionError(Exception):
    """Ends a run in the middle, as a lost process would."""


INTERRUPTED: dict[str, dict[str, Any]] = {
    "batch-ensemble": {  # in the middle of the second epoch
        "network": "dropout", "data": blobs, "consumed": 7,
        "recipe": {**RECIPE, "checkpoint": 1, "ema": 0.9, "keep": "best", "optimizer": "adam", "lr": 0.01},
        "method": ["batch-ensemble", {"members": 3}],
    },
    "late-phase": {  # after its late start at minibatch 5; a step of three minibatches
        "network": "normed", "data": blobs, "consumed": 11, "recipe": {**RECIPE, "checkpoint": 1},
        "method": ["late-phase", {"members": 3, "start": 1, "noise": 0.1, "collapse": False}],
    },
    "swag": {  # after two of four snapshots
        "network": "mlp", "data": blobs, "consumed": 17, "recipe": {**RECIPE, "epochs": 5, "checkpoint": 1},
        "method": ["swag", {"members": 4, "start": 1, "rank": 3}],
    },
    "swag-batch-norm": {  # likewise; how its statistics are estimated again depends on what is measured to be faster
        "network": "normed", "data": blobs, "consumed": 17, "tolerance": 1e-5,
        "recipe": {**RECIPE, "epochs": 5, "checkpoint": 1},
        "method": ["swag", {"members": 4, "start": 1, "rank": 3}],
    },
    "superweights": {  # after refinement, before decoupling
        "network": "shapes", "data": pictures, "consumed": 5,
        "recipe": {**RECIPE, "epochs": 4, "lr": 0.02, "checkpoint": 1},
        "method": [
            "superweights", {"budget": 3.0, "refine_at": 1, "decouple_at": 1, "tau": 0.3, "beta": 0.95},
        ],
    },
}  # fmt: skip


def write_checkpoint(name: str) -> None:
    case, place = INTERRUPTED[name], FIRST / "checkpoints" / name
    kind, options = case["method"]
    data = case["data"]()

    def run(folder: Path | None, *, resume: bool = False) -> covey.History:
        return covey.fit(
            networks.build(case["network"]), data, covey.Recipe(**case["recipe"]),
            method={**covey.METHODS, **covey.PHASED}[kind](**options), folder=folder, machine=QUIET, resume=resume,
        )  # fmt: skip

    save = checkpoint.save

    def save_and_stop(job: Any, state: Any) -> Any:
        path = save(job, state)
        if state.consumed >= case["consumed"]:
            raise InterruptionError
        return path

    checkpoint.save = save_and_stop
    try:
        run(place / "run")
    except InterruptionError:
        pass
    else:
        raise AssertionError("the run was not interrupted")
    finally:
        checkpoint.save = save
    splits = {"train": data.train, "validation": data.validation, "test": data.test}
    tensors = {f"{part}.inputs": split.inputs for part, split in splits.items()}
    tensors |= {f"{part}.targets": split.targets for part, split in splits.items()}
    save_file(tensors, place / "data.safetensors")
    about = {"network": case["network"], "recipe": case["recipe"], "method": kind, "options": options}
    about |= {"tolerance": case.get("tolerance", 0.0)}
    about |= {"classes": data.classes, "shape": data.shape, "record": data.record}

    copied = HERE / "resumed"
    shutil.copytree(place / "run", copied)
    try:
        resumed = run(copied, resume=True)
    finally:
        shutil.rmtree(copied)
    assert resumed.resumed is not None
    undisturbed = run(None)
    about["rows"] = [{key: value for key, value in row.items() if key != "seconds"} for row in resumed.rows]
    (place / "case.json").write_text(json.dumps(about, indent=1) + "\n")
    x = data.test.inputs[:5].clone()
    expected = {"x": x, **answers(resumed.ensemble, x)}
    other = answers(undisturbed.ensemble, x)
    if not all(torch.equal(other[key], expected[key]) for key in other):
        print(f"{name}: resuming does not give what an undisturbed run gives")
        # a resumed SWAG draws in the order in which the file holds the tensors; both answers are recorded, so that
        # drawing in the network's order, as an undisturbed run does, is as good
        expected |= {f"undisturbed.{key}": tensor for key, tensor in other.items()}
    save_file(expected, place / "expected.safetensors")


# --- runs of the command line -----------------------------------------------------------------------------------

SMALL = ["--data", "digits", "--samples", "48", "--network", "mlp", "--epochs", "2", "--batch", "16"]
SMALL += ["--network-option", "hidden=[6]", "--run", "loop", "--no-progress"]
COMMANDS = {
    "batch-ensemble": ["batch-ensemble", "--members", "2"],
    "late-phase": ["late-phase", "--members", "2", "--kind", "rank-one", "--start", "1", "--no-collapse"],
}


def command(*words: str, folder: Path) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parents[1] / "src")}
    done = subprocess.run(
        [sys.executable, "-m", "covey.cli", *words],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_command(name: str) -> None:
    place = FIRST / "commands" / name
    place.mkdir(parents=True)
    command("train", *COMMANDS[name], *SMALL, "--folder", "run", folder=place)
    x = np.random.default_rng(0).integers(0, 255, (4, 1, 8, 8), dtype=np.uint8)
    np.save(place / "x.npy", x)
    command("predict", "run", "x.npy", "--out", "predict.csv", folder=place)
    (place / "show.txt").write_text(command("show", "run", folder=place))
    kept = HERE / "evaluated"
    shutil.copytree(place / "run", kept / "run")
    try:
        scores = command("evaluate", "run", "--json", "--no-report", folder=kept)
    finally:
        shutil.rmtree(kept)
    (place / "evaluate.json").write_text(scores)


README = """\
# What covey 0.1.0 stores

Written on 2026-11-16 by `OMP_NUM_THREADS=1 PYTHONPATH=src python tests/stored/make.py` with covey {covey}, the first
format of stored ensembles, checkpoints and runs, torch {torch} ({capability} instructions) and one thread.
Each folder in `ensembles/` is what `ensemble.save` wrote, and the file beside it holds an input `x`, the members'
`outputs` for it in eval mode with `run = "loop"`, and parts of `ensemble.predict(x)`; `torch.manual_seed(0)` was
called directly before each of the two calls. `checkpoints/` holds runs that were interrupted, with the data and
settings to resume them and the answers of the ensemble that resuming gave; `commands/` holds runs of `covey train`,
with what `covey predict`, `covey evaluate` and `covey show` printed. These files are not written again: code that
changes must go on reading them.
"""


def main() -> None:
    networks.steady()
    if FIRST.exists():
        shutil.rmtree(FIRST)
    (FIRST / "ensembles").mkdir(parents=True)
    index = {}
    for name, case in CONVERTED.items():
        index[name] = write_ensemble(name, case.network, converted(case), case.x())
    for name, (network, ensemble, x) in special().items():
        index[name] = write_ensemble(name, network, ensemble, x)
    for name in TRAINED:
        index[name] = write_ensemble(name, *trained(name))
    (FIRST / "ensembles.json").write_text(json.dumps(index, indent=1) + "\n")
    for name in INTERRUPTED:
        write_checkpoint(name)
    for name in COMMANDS:
        write_command(name)
    capability = torch.backends.cpu.get_cpu_capability()
    text = README.format(covey=covey.__version__, torch=torch.__version__, capability=capability)
    (FIRST / "README.md").write_text(text)


if __name__ == "__main__":
    main()
