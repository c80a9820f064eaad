"""What training keeps for the backward pass above the members' own activations, in network sizes (P) per member.

A plain network of the same input is the measure of activations: an ensemble of M members keeps at least M times what
one network keeps. Tensors that the backward pass keeps are counted by their storage, once each, without parameters.

Run: python benchmarks/memory.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import covey
from covey import zoo

MEMBERS = 4


def kept(model: nn.Module, x: Tensor) -> int:
    """Bytes that a training step keeps for the backward pass, parameters excepted."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    seen: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        outputs = model(x)
    assert outputs.requires_grad
    return sum(seen.values())


def encoder() -> nn.Module:
    """Six layers of 256 features."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 6, enable_nested_tensor=False), nn.Linear(256, 10))


def main() -> None:
    """A table: network, method, run."""
    torch.manual_seed(0)
    networks = {
        "MLP 4 x 1024, batch 64": (
            zoo.create("mlp", classes=10, features=1024, hidden=(1024,) * 4),
            (64, 1024),
        ),
        "ResNet-18, batch 16": (zoo.create("cifar-resnet-18", classes=10, channels=3), (16, 3, 32, 32)),
        "6 encoder layers, batch 8 x 64": (encoder(), (8, 64, 256)),
    }
    print(
        f"{'network':32} {'method':16} {'weights':8} {'loop':>8} {'batched':>8}   P per member, M {MEMBERS}"
    )
    for name, (network, shape) in networks.items():
        x = torch.randn(*shape)
        size = sum(p.numel() * p.element_size() for p in network.parameters())
        alone = kept(network.train(), x)
        for method in (covey.BatchEnsemble(members=MEMBERS), covey.Masksembles(members=MEMBERS)):
            ensemble = covey.convert(network, method, example=x).train()
            for acting in (False, True):
                ensemble.acting = acting
                row = []
                for run in ("loop", "batched"):
                    ensemble.run = run
                    row.append((kept(ensemble, x) - MEMBERS * alone) / size / MEMBERS)
                form = "acting" if acting else "made"
                print(
                    f"{name:32} {type(method).__name__:16} {form:8} {row[0]:8.3f} {row[1]:8.3f}", flush=True
                )


if __name__ == "__main__":
    main()
