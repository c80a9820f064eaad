"""What any module can do: other dtypes, compilers, processes, and networks from elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import covey
from law_networks import NETWORKS, network

METHODS = [
    covey.Replicate(members=3, noise=0.1),
    covey.DeepEnsemble(members=3),
    covey.MultiHead(members=3),
    covey.BatchEnsemble(members=3),
    covey.Masksembles(members=3),
    covey.MIMO(members=3),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision(method: covey.Method, dtype: torch.dtype) -> None:
    net = network("convnet", dtype)
    x = NETWORKS["convnet"].x(6).to(dtype)
    ens = covey.convert(net, method, example=x)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 6e-2}[dtype]
    for run in ("loop", "batched"):
        ens.run = run
        outputs = ens.train()(x)
        outputs.float().square().sum().backward()
        assert outputs.dtype == dtype
        ens.eval()
        for k, output in enumerate(ens(x)):
            torch.testing.assert_close(output, ens.member(k).eval()(x), rtol=tolerance, atol=tolerance)


@settings(max_examples=25, deadline=None)
@given(
    members=st.integers(1, 6),
    batch=st.integers(1, 9),
    rank=st.integers(0, 2),
    width=st.integers(8, 24),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    kind=st.sampled_from([covey.DeepEnsemble, covey.BatchEnsemble, covey.Masksembles, covey.MultiHead]),
    seed=st.integers(0, 1000),
)
def test_any_shape(
    members: int, batch: int, rank: int, width: int, dtype: torch.dtype, kind: Any, seed: int
) -> None:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(5, width), nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, 3)).to(dtype)
    x = torch.randn(batch, *[2] * rank, 5).to(dtype)
    ens = covey.convert(net, kind(members=members), example=x, seed=seed)
    outputs = {}
    for run in ("loop", "batched"):
        ens.run = run
        outputs[run] = ens(x)
        assert outputs[run].shape == (members, *x.shape[:-1], 3)
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 0.15}[dtype]
    torch.testing.assert_close(outputs["loop"], outputs["batched"], rtol=tolerance, atol=tolerance)
    assert ens.predict(x).probs.shape == (*x.shape[:-1], 3)


@settings(max_examples=15, deadline=None)
@given(
    members=st.integers(1, 4), batch=st.integers(1, 5), groups=st.sampled_from([1, 2, 4]), last=st.booleans()
)
def test_any_image(members: int, batch: int, groups: int, last: bool) -> None:
    net = nn.Sequential(
        nn.Conv2d(4, 8, 3, groups=groups), nn.ReLU(), nn.Conv2d(8, 8, 1, groups=groups)
    ).double()
    x = torch.randn(batch, 4, 5, 5, dtype=torch.float64)
    ens = covey.convert(net, covey.BatchEnsemble(members=members))
    expected = torch.stack([ens.member(k)(x) for k in range(members)])
    if last:
        ens.to(memory_format=torch.channels_last)
    for run in ("loop", "batched"):
        ens.run = run
        torch.testing.assert_close(ens(x), expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_inductor_compiles_it() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    ens = covey.convert(net, covey.BatchEnsemble(members=3), example=torch.randn(2, 4))
    ens.run = "loop"
    x = torch.randn(5, 4)
    expected = ens(x)
    expected.square().sum().backward()
    gradients = [p.grad.clone() for p in ens.parameters()]
    ens.zero_grad()
    torch._dynamo.reset()
    outputs = torch.compile(ens)(x)
    torch.testing.assert_close(outputs, expected)
    outputs.square().sum().backward()
    for parameter, gradient in zip(ens.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


_WORKER = """
import os, sys, torch, torch.distributed as dist
import covey
from torch import nn
torch.set_num_threads(1)
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3)).double()
x, y = torch.randn(8, 4).double(), torch.randint(0, 3, (8,))
results = []
for method in (covey.DeepEnsemble(members=3), covey.BatchEnsemble(members=3), covey.MultiHead(members=3)):
    ens = covey.convert(net, method, example=x)
    ens.run = "loop"
    alone = covey.convert(net, method, example=x)
    alone.run = "loop"
    wrapped = nn.parallel.DistributedDataParallel(ens)
    for model, part in ((wrapped, slice(rank * 4, rank * 4 + 4)), (alone, slice(0, 8))):
        opt = torch.optim.SGD(ens.param_groups(0.1) if model is wrapped else alone.param_groups(0.1), lr=0.1)
        for _ in range(3):
            opt.zero_grad()
            covey.loss(model(x[part]), y[part]).backward()
            opt.step()
    for a, b in zip(ens.parameters(), alone.parameters()):
        torch.testing.assert_close(a, b)
print("same")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path: Any) -> None:
    command = [sys.executable, "-c", _WORKER]
    workers = [
        subprocess.Popen([*command, str(r), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True)
        for r in range(2)
    ]
    assert [worker.communicate(timeout=120)[0].strip() for worker in workers] == ["same", "same"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("resnet10t", 32),
        pytest.param("mobilenetv3_small_050", 32, marks=pytest.mark.slow),
        pytest.param("vit_tiny_patch16_224", 32, marks=pytest.mark.slow),
        pytest.param("convnext_atto", 32, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
def test_networks_of_timm(timm: Any, name: str, size: int, method: covey.Method) -> None:
    options = {"img_size": size} if "vit" in name else {}
    torch.manual_seed(0)
    net = timm.create_model(name, num_classes=5, **options).double().eval()
    x = torch.randn(2, 3, size, size, dtype=torch.float64)
    ens = covey.convert(net, method, example=x).eval()
    for run in ("loop", "batched"):
        ens.run = run
        outputs = ens(x)
        for k in range(3):
            torch.testing.assert_close(outputs[k], ens.member(k).eval()(x), rtol=1e-8, atol=1e-8)


def test_importing_covey_costs_little_more_than_torch() -> None:
    """Heavy packages are imported where they are used, not with covey."""
    heavy = (
        "sklearn",
        "matplotlib",
        "pandas",
        "onnx",
        "scipy",
        "sympy",
        "transformers",
        "torchmetrics",
        "tyro",
    )
    code = f"import sys, covey; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.timeout(180)
@pytest.mark.filterwarnings("ignore")  # the exporter's own
def test_a_member_and_a_collapsed_network_answer_in_onnx_runtime(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    network = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    x = torch.randn(5, 2, 6, 6)
    ensemble = covey.convert(network, covey.NormEnsemble(members=2, noise=0.2), example=x)
    for name, plain in {"member": ensemble.member(1).eval(), "collapsed": ensemble.collapse().eval()}.items():
        file = tmp_path / f"{name}.onnx"
        torch.onnx.export(
            plain, (x[:2],), file, dynamic_shapes=({0: torch.export.Dim("batch")},), verbose=False
        )
        session = runtime.InferenceSession(file, providers=["CPUExecutionProvider"])
        (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), plain(x), rtol=1e-4, atol=1e-5)
