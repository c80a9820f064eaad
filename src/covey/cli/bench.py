"""`covey bench`: what each form of a trained run costs on this machine, and which is the best."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor
from tyro.conf import Positional

from covey import deploy
from covey.cli import reading
from covey.cli.flags import UsageError, parse_one
from covey.data.inputs import prepare, read_inputs
from covey.deploy.benching import BATCHES
from covey.files import write_text

_INPUTS = 256  # samples that forms answer and int8 is calibrated on
_HOW = {
    "eager": "covey predict {folder} INPUT, or ensemble.predict in Python.",
    "fused": "covey.fuse(ensemble, example) in Python.",
    "compiled": "torch.compile(covey.fuse(ensemble, example)) in Python.",
    "onnx": "covey export {folder} --to onnx",
    "int8": "covey export {folder} --to onnx --int8 train",
}


@dataclass(frozen=True, kw_only=True)
class BenchFlags:
    """Time every form of a trained run.

    Args:
        folder: of the run.
        data: inputs to answer, as `covey predict` takes them; the run's own training data if not given.
        network: the run's network again, as FILE.py:FUNCTION, which is run; only for a network of your own.
        batches: samples that are answered at once.
        threads: of torch and ONNX Runtime; as many as torch takes if not given.
        repeats: turns, of which the fastest counts.
        compiled: compile the fused module too, which takes minutes.
        int8_limit: largest share of predictions that int8 may change; above it, there is no int8 form.
        write: a .json file to write all rows to.
    """

    folder: Positional[str]
    data: str | None = None
    network: str | None = None
    batches: tuple[int, ...] = BATCHES
    threads: int | None = None
    repeats: int = 7
    compiled: bool = False
    int8_limit: float = 0.005
    write: str | None = None


def bench(args: Sequence[str]) -> int:
    """Time every form of a trained run here, and name the best: covey bench FOLDER"""
    own = parse_one(
        "covey bench",
        BenchFlags,
        args,
        about="Time every form of a trained run on this machine, and name the best.",
    )
    if own.write is not None and Path(own.write).suffix != ".json":
        raise UsageError(f"--write is a .json file; got {own.write!r}.")
    folder = reading.existing(own.folder)
    ensemble = reading.read_ensemble(folder, own.network)
    inputs = _inputs(own, folder)
    found = deploy.bench(
        ensemble,
        reading.read_network(folder, ensemble, own.network),
        inputs,
        batches=own.batches,
        threads=own.threads,
        repeats=own.repeats,
        compiled=own.compiled,
        int8=inputs,
        int8_limit=own.int8_limit,
    )
    print(f"{found}\nTo use it: {_HOW[found.best].format(folder=own.folder)}")
    if own.write is not None:
        write_text(Path(own.write), json.dumps(found.to_dict(), indent=1) + "\n")
    return 0


def _inputs(own: BenchFlags, folder: Path) -> Tensor:
    """What is answered, as the network takes it."""
    if own.data is None:
        data = reading.read_data(folder)
        return data.prepare(data.train.inputs[:_INPUTS])
    record = reading.read_settings(folder)["record"]
    _, inputs = read_inputs(own.data, record)
    return prepare(inputs[:_INPUTS], record)
