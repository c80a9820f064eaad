"""covey serve: a trained run behind HTTP."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tyro.conf import Positional

from covey.cli import reading
from covey.cli.calibrated import Kind, read_calibrated
from covey.cli.flags import UsageError, parse
from covey.ensemble import Ensemble
from covey.errors import OptionError, StoreError
from covey.extras import load

if TYPE_CHECKING:
    from fastapi import FastAPI

    from covey.scores import Anytime
    from covey.serving import Limits
    from covey.serving.on_ray import Replicas

_SCORED = 512  # validation samples that subsets of members are scored on


@dataclass(frozen=True, kw_only=True)
class ServeFlags:
    """Serve a trained run.

    Args:
        folder: of the run, or an .onnx file that `covey export` wrote.
        network: the run's network again, as FILE.py:FUNCTION, which is run; only for a network of your own.
        temperature: calibrate probabilities with the temperature that `covey evaluate` fitted: "pooled" for one of the
            mean, "members" for one per member.
        host: address to listen at; 127.0.0.1 is this machine alone, 0.0.0.0 every network it is in.
        port: 0 takes a free one.
        name: of the model in the paths of the Open Inference Protocol; the folder's by default.
        defer: mark answers whose uncertainty is above this.
        defer_by: which uncertainty: entropy or mutual_information of classes, std or epistemic of numbers, width or
            epistemic of quantiles.
        ray: serve with several processes on Ray: the cluster at $RAY_ADDRESS if that is set, else this machine (needs
            covey[ray]).
        anytime: measure subsets of members on the validation data first, so that requests may name a budget_ms.
    """

    folder: Positional[str] = ""
    network: str | None = None
    temperature: Kind | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    name: str | None = None
    defer: float | None = None
    defer_by: str | None = None
    ray: bool = False
    anytime: bool = False


def serve(args: Sequence[str]) -> int:
    """Serve a trained run over HTTP: covey serve FOLDER [--port 8000] [--defer 0.5]"""
    for package in ("fastapi", "uvicorn", "python_multipart"):
        load(package)
    from covey import serving
    from covey.serving.on_ray import Replicas

    parts = {"own": ServeFlags(), "limits": serving.Limits(), "replicas": Replicas()}
    found = parse("covey serve", parts, args, about=_ABOUT)
    own, limits = found["own"], found["limits"]
    if not own.folder:
        raise UsageError("covey serve needs the folder of a run: covey serve FOLDER")
    _check(own)
    if own.ray:
        return _serve_on_ray(own, limits, found["replicas"])
    if found["replicas"] != Replicas():
        raise UsageError("--replicas and --most-replicas are for --ray; without it, one process answers.")
    # The port is taken before the work, so that one in use is told of at once.
    place = serving.bind(own.host, own.port)
    try:
        app = _application(own, limits)
        _tell(own, place.getsockname())
        serving.serve(app, place, limits)
    finally:
        place.close()
    print("stopped; everything that was accepted is answered", flush=True)
    return 0


def _serve_on_ray(own: ServeFlags, limits: Limits, replicas: Replicas) -> int:
    from covey.serving.on_ray import on_ray, wait_for_the_end

    # Replicas are processes of their own, which may start elsewhere.
    absolute = replace(own, folder=str(Path(own.folder).resolve()))
    build = partial(_application, absolute, limits)
    with on_ray(build, own.host, own.port, replicas=replicas, limits=limits) as address:
        _tell(own, address)
        wait_for_the_end()
    print("stopped; everything that was accepted is answered", flush=True)
    return 0


def _application(own: ServeFlags, limits: Limits) -> FastAPI:
    """The run as an application that has answered once."""
    from covey import serving

    path = Path(own.folder)
    if _is_file(own):
        served = serving.ServedFile(path)
        what: dict[str, Any] = {"ensemble": served, "record": served.record}
    else:
        ensemble = read_calibrated(path, own.network, own.temperature)
        what = {"ensemble": ensemble, "record": reading.read_settings(path)["record"]}
        if own.anytime:
            what["anytime"] = _measured(ensemble, path, limits.batch)
    model = serving.Model(name=own.name or _plain(path), defer=own.defer, defer_by=own.defer_by, **what)
    model.warm_up(limits.batch)
    return serving.application(model, limits)


def _is_file(own: ServeFlags) -> bool:
    return Path(own.folder).suffix == ".onnx" and not Path(own.folder).is_dir()


def _check(own: ServeFlags) -> None:
    """Refuse what cannot be served before a port is taken."""
    if own.anytime and own.temperature is not None:
        raise UsageError(
            "--temperature was fitted for all members, and --anytime answers with some; choose one."
        )
    if not _is_file(own):
        reading.read_settings(reading.existing(own.folder))
        return
    load("onnxruntime")
    if not Path(own.folder).is_file():
        raise StoreError(
            f"{own.folder} is not there; expected the folder of a run, or an exported .onnx file."
        )
    for flag, given in (
        ("--network", own.network),
        ("--temperature", own.temperature),
        ("--anytime", own.anytime),
    ):
        if given:
            raise UsageError(f"{flag} is for runs; {own.folder} is an exported file, which answers as it is.")


def _tell(own: ServeFlags, address: tuple) -> None:
    host, port = address[:2]
    shown = f"[{host}]" if ":" in host else host
    print(f"serving {own.folder} at http://{shown}:{port}/ (stop with Ctrl-C)", flush=True)


_ABOUT = (
    "Serve a trained run over HTTP: /predict, /metadata, /metrics, a page at /, and /v2 for KServe's clients."
)


def _plain(folder: Path) -> str:
    """The name of a folder or file as a path of a URL can hold it."""
    name = folder.resolve().name.removesuffix(".onnx")
    return re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII).strip("-.") or "covey"


def _measured(ensemble: Ensemble, folder: Path, batch: int) -> Anytime:
    """What each subset of members costs at the service's batch size, and how good it is on validation data."""
    from covey.scores import anytime

    settings = reading.settings_of(reading.read_settings(folder))
    data = settings.dataset.load()
    if not len(data.validation):
        raise OptionError(
            f"--anytime scores members on validation data, and {folder} was trained without any."
        )
    inputs, targets = next(data.validation.in_order(_SCORED))
    score = "nll" if ensemble.task == "classification" else None
    return anytime(ensemble, data.prepare(inputs), targets, score=score, batch=batch)
