"""Files of the Hugging Face hub that are on this machine already."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from covey.errors import StoreError
from covey.extras import load


def cached_weights(repository: str, names: Sequence[str]) -> Path:
    """A safetensors file of a repository in the hub's cache; nothing is downloaded.

    Args:
        repository: such as "timm/resnet18.a1_in1k".
        names: file names that would do, the preferred one first.
    """
    hub = load("huggingface_hub")
    for name in names:
        found = hub.try_to_load_from_cache(repository, name)
        if isinstance(found, str):
            return Path(found)
    raise StoreError(
        f"{repository} has no {' or '.join(names)} in the hub's cache on this machine, and covey downloads nothing: "
        f"fetch it first with `hf download {repository}`."
    )
