"""Ensembles of transformers: their Trainer, generation, the hub, and peft's adapters.

Everything is imported when it is first asked for; adapters need neither transformers nor peft.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from covey.hf.model import EnsembleModel, EnsembleOutput
    from covey.hf.trainer import EnsembleTrainer

__all__ = [
    "EnsembleModel",
    "EnsembleOutput",
    "EnsembleTrainer",
]

_HOMES = {
    "EnsembleModel": "model",
    "EnsembleOutput": "model",
    "EnsembleTrainer": "trainer",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for."""
    if name in _HOMES:
        return getattr(import_module(f"covey.hf.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'covey.hf' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
