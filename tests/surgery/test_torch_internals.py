"""What users see when PyTorch drops or changes a private part, and that one file is all that has to follow."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from covey.errors import CoveyError
from covey.surgery import TorchChangedError, narrow, pack, torch_internals

PACKAGE = Path(torch_internals.__file__).parent
REPOSITORY = Path(__file__).parents[2]


def _narrow() -> None:
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 2))
    narrow(network, 0.5, torch.zeros(2, 3, 8, 8))


def _narrow_attention() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    narrow(nn.Sequential(nn.Linear(4, 8), layer, nn.Linear(8, 2)), 0.5, torch.zeros(2, 3, 4))


def _narrow_with_subgroups() -> None:
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 2, 1))
    narrow(network, 0.5, torch.zeros(2, 3, 8, 8), groups=2)


def _pack() -> None:
    members = [nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 2)) for _ in range(2)]
    pack(members, (torch.zeros(2, 4),), {})


# Taking a part away changes PyTorch itself, so only parts that PyTorch can do without for a moment are tried.
HOOKS: dict[str, Callable[[], None]] = {
    "torch._subclasses.fake_tensor.FakeTensorMode": _narrow,
    "torch.nn.modules.conv._ConvNd": _narrow,
    "torch.nn.modules.instancenorm._InstanceNorm": _narrow,
    "torch.backends.mha.set_fastpath_enabled": _narrow_attention,
    "torch.utils._python_dispatch.TorchDispatchMode": _narrow_with_subgroups,
    "torch.fx.passes.shape_prop.ShapeProp": _pack,
    "torch.nn.modules.dropout._DropoutNd": _pack,
}


@pytest.mark.parametrize("hook", HOOKS)
def test_a_missing_hook_is_named(monkeypatch: pytest.MonkeyPatch, hook: str) -> None:
    HOOKS[hook]()  # it works while PyTorch has it
    monkeypatch.delattr(hook)
    with pytest.raises(TorchChangedError) as caught:
        HOOKS[hook]()
    assert isinstance(caught.value, CoveyError)
    assert caught.value.hook == hook
    message = str(caught.value)
    assert (
        f"PyTorch {torch.__version__} no longer has {hook} as covey knows it, and covey needs it to"
        in message
    )
    assert "tested with PyTorch 2.13: install that version, or build the narrow network yourself" in message


def test_a_hook_that_is_called_in_another_way_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Renamed:
        def __init__(self, environment: Any) -> None: ...

    monkeypatch.setattr("torch._subclasses.fake_tensor.FakeTensorMode", Renamed)
    with pytest.raises(TorchChangedError, match=r"fake_tensor\.FakeTensorMode"):
        _narrow()


def test_an_operator_that_is_gone_is_named() -> None:
    torch_internals.require_operators(["aten.mm"])
    with pytest.raises(TorchChangedError, match=r"torch\.ops\.aten\.bygone"):
        torch_internals.require_operators(["aten.mm", "aten.bygone"])


def test_a_users_own_mistakes_are_not_blamed_on_torch() -> None:
    class Wrong(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.no_such_method()

    with pytest.raises(CoveyError, match="AttributeError.*no_such_method") as caught:
        narrow(Wrong(), 0.5, torch.zeros(2, 4))
    assert not isinstance(caught.value, TorchChangedError)


# Private modules and attributes of PyTorch, and modules that it declares experimental.
PRIVATE = re.compile(
    r"torch\._[a-z]|torch\.\w+\._[a-z]|_pytree|fx\.experimental|passes\.shape_prop|SymNode|ShapeEnv|"
    r"FakeTensorMode|TorchDispatchMode|torch\.ops|modules\.\w+\._|\._qkv|\._parameters|\._buffers|\.node\.(?:expr|hint)"
)


def test_one_file_names_private_parts_of_torch() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 10
    for path in files:
        found = PRIVATE.findall(path.read_text())
        if path.name == "torch_internals.py":
            assert found
        else:
            assert not found, path.name


def test_the_package_has_one_entrance() -> None:
    inside = re.compile(r"(from|import) covey\.surgery\.")
    for folder in ("src", "tests", "benchmarks"):
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            if PACKAGE not in path.parents:
                assert not inside.search(path.read_text()), path


def test_the_page_lists_every_hook() -> None:
    page = (REPOSITORY / "docs" / "surgery.md").read_text()
    for name, function in inspect.getmembers(torch_internals, inspect.isfunction):
        is_hook = function.__module__ == torch_internals.__name__ and not name.startswith("_")
        if is_hook:
            assert f"`{name}`" in page, name
