"""Ensembles of transformers: their Trainer, generation, the hub, and peft's adapters.

Everything is imported when it is first asked for; adapters need neither transformers nor peft.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from covey.hf.adapters import from_adapters, save_adapters
    from covey.hf.generation import Generation, generate
    from covey.hf.hub import pull, push
    from covey.hf.model import EnsembleModel, EnsembleOutput
    from covey.hf.trainer import EnsembleTrainer

__all__ = [
    "EnsembleModel",
    "EnsembleOutput",
    "EnsembleTrainer",
    "Generation",
    "from_adapters",
    "generate",
    "pull",
    "push",
    "save_adapters",
]

_HOMES = {
    "EnsembleModel": "model",
    "EnsembleOutput": "model",
    "EnsembleTrainer": "trainer",
    "Generation": "generation",
    "from_adapters": "adapters",
    "generate": "generation",
    "pull": "hub",
    "push": "hub",
    "save_adapters": "adapters",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for."""
    if name in _HOMES:
        return getattr(import_module(f"covey.hf.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'covey.hf' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
