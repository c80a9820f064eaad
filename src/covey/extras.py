"""Packages that only parts of covey need, each with the extra of covey that brings it.

`pip install covey` brings what converting, predicting and storing need. Everything else is asked for with `load` where
it is used, so that a missing package is one line that names the command to install it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from covey.errors import MissingExtraError

EXTRA_OF: dict[str, str] = {
    "lightning_fabric": "train",
    "tqdm": "train",
    "PIL": "data",
    "pandas": "data",
    "pooch": "data",
    "pyarrow": "data",
    "requests": "data",
    "scipy": "scores",
    "torchmetrics": "scores",
    "jinja2": "report",
    "markupsafe": "report",
    "matplotlib": "report",
    "sklearn": "sklearn",
    "docstring_parser": "cli",
    "tomli": "cli",
    "tyro": "cli",
    "accelerate": "hf",
    "huggingface_hub": "hf",
    "transformers": "hf",
    "lightning": "lightning",
    "ray": "ray",
    "tensorboard": "tensorboard",
    "timm": "timm",
    "wandb": "wandb",
    "mlflow": "mlflow",
    "onnx": "export",
    "onnxruntime": "export",
    "onnxscript": "export",
    "anyio": "serve",
    "fastapi": "serve",
    "python_multipart": "serve",
    "starlette": "serve",
    "uvicorn": "serve",
}
"""For each package that may be missing, by the name it is imported under, an extra that brings it."""


def load(name: str) -> Any:
    """Import a module of a package that may be missing.

    >>> load("json").dumps([1])
    '[1]'
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise explained(error) from None
    except Exception as error:  # as packages do that were built for another version of torch
        package = name.partition(".")[0]
        raise MissingExtraError(
            f"the package {package} is installed and fails when it is imported ({type(error).__name__}: {error}): "
            "install versions that fit together."
        ) from error


def explained(error: ModuleNotFoundError) -> Exception:
    """The error that says which extra is missing; the error itself where it is about something else."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRA_OF:
        return error
    extra = EXTRA_OF[package]
    return MissingExtraError(f"this needs the package {package}: pip install 'covey[{extra}]'")
