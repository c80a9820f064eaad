"""Members as peft adapters, and adapters as members."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_transformers import batch, bert, distilbert, ensemble, gpt2, llama, stirred
from torch import nn

import covey
from covey.errors import ConversionError, OptionError, StoreError
from covey.hf import from_adapters, save_adapters

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("default")  # peft warns for itself


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 3))
        self.head = nn.Linear(8, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(images).mean((2, 3)))


def nested() -> nn.Module:
    """The path of its first layer, 0, ends that of another, 2.0."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)))


IMAGES = {"images": torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(0))}
WORDS = batch(3)
CASES: dict[str, tuple[Any, covey.Method, dict[str, torch.Tensor]]] = {
    "bert": (bert, covey.LowRank(members=2, rank=4), WORDS),
    # the path of its head, classifier, ends that of an updated layer, pre_classifier
    "distilbert": (distilbert, covey.LowRank(members=2, rank=4), WORDS),
    "llama": (llama, covey.SharedLowRank(members=2, rank=4), WORDS),
    "gpt2": (gpt2, covey.LowRank(members=2, rank=2, scaling=0.7, own=()), WORDS),
    "embedding": (
        llama,
        covey.LowRank(members=2, rank=2, own=("head", "model.norm"), where=("model.embed_tokens", "q_proj")),
        WORDS,
    ),
    "convolutions": (Pictures, covey.LowRank(members=2, rank=3), IMAGES),
    "sequential": (
        nested,
        covey.LowRank(members=2, rank=2, where="0.weight", own=()),
        {"input": torch.ones(2, 4)},
    ),
}


def logits(network: nn.Module, given: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        found = network.eval()(**given)
    return found if isinstance(found, torch.Tensor) else found.logits


@pytest.mark.parametrize("case", CASES)
def test_peft_reads_members_and_members_read_peft(case: str, tmp_path: Path) -> None:
    make, method, given = CASES[case]
    made = stirred(covey.convert(make(), method, example=given, check=False))
    made.run = "loop"
    folders = save_adapters(made, tmp_path)
    assert [folder.name for folder in folders] == ["member-0", "member-1"]
    assert {p.name for p in folders[0].iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    answers = []
    for k, folder in enumerate(folders):
        theirs = logits(peft.PeftModel.from_pretrained(make(), folder), given)
        answers.append(theirs)
        torch.testing.assert_close(logits(made.member(k), given), theirs, rtol=1e-5, atol=1e-5)
    assert (answers[0] - answers[1]).abs().max() > 1e-3
    again = from_adapters(make(), folders, example=given).eval()
    for k in range(2):
        torch.testing.assert_close(again(**given)[k], answers[k], rtol=1e-5, atol=1e-5)


def trained(folder: Path, seed: int, network: nn.Module | None = None, **options: Any) -> Path:
    """An adapter as peft writes it, with numbers in all of it."""
    settings: dict[str, Any] = dict(r=4, lora_alpha=6, target_modules=["query", "value"])
    model = peft.get_peft_model(
        loud() if network is None else network, peft.LoraConfig(**{**settings, **options})
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    model.save_pretrained(folder)
    return folder


def loud() -> nn.Module:
    """A BERT whose weights are large enough for an update of its attention to show in its answers."""
    return bert(initializer_range=0.5)


def peft_answer(folder: Path) -> torch.Tensor:
    return logits(peft.PeftModel.from_pretrained(loud(), folder), WORDS)


def test_adapters_that_somebody_trained(tmp_path: Path) -> None:
    folders = [
        trained(tmp_path / "plain", 1),
        trained(tmp_path / "larger", 2, r=6, lora_alpha=3, target_modules=["query", "dense"]),
        trained(tmp_path / "stable", 3, use_rslora=True, modules_to_save=["classifier"]),
        trained(tmp_path / "biased", 4, bias="lora_only"),
        trained(tmp_path / "patterns", 5, rank_pattern={"layer.0.attention.self.query": 2}, alpha_pattern={"value": 9}),
    ]  # fmt: skip
    made = from_adapters(loud(), folders, example=WORDS, check=True).eval()
    made.run = "loop"
    assert made.members == 5
    assert made.method.rank == 6
    before = logits(loud(), WORDS)
    for k, folder in enumerate(folders):
        answer = peft_answer(folder)
        assert (answer - before).abs().max() > 0.05
        torch.testing.assert_close(made(**WORDS)[k], answer, rtol=1e-4, atol=1e-5)
    covey.save(made, tmp_path / "kept")
    again = covey.load(tmp_path / "kept", network=loud()).eval()
    assert torch.equal(again(**WORDS), made(**WORDS))
    # and it goes on learning, in the filled-up rows too
    update = made.train().parts["low_rank"]
    for _ in range(2):
        made.zero_grad()
        made.loss(WORDS, torch.tensor([0, 1, 2])).backward()
        torch.optim.SGD(made.param_groups(lr=0.5)).step()
    made.loss(WORDS, torch.tensor([0, 1, 2])).backward()
    name = "bert.encoder.layer.0.attention.self.query.weight"
    assert update.a[name].grad[0, 4:].any()
    assert update.b[name].grad[0, :, 4:].any()


def untied() -> nn.Module:
    """GPT-2 with a head of its own, of the same values as the embedding."""
    network = gpt2()
    network.lm_head.weight = nn.Parameter(network.transformer.wte.weight.detach().clone())
    network.config.tie_word_embeddings = False
    return network


@pytest.mark.parametrize(
    "options",
    [
        {"target_modules": ["wte"]},
        {"target_modules": ["lm_head"]},
        {"target_modules": ["c_attn"], "modules_to_save": ["wte"]},
    ],
)
def test_an_adapter_of_a_tied_layer(options: dict[str, Any], tmp_path: Path) -> None:
    folder = trained(tmp_path, 1, network=gpt2(), **options)
    answer = logits(peft.PeftModel.from_pretrained(gpt2(), folder), WORDS)
    with pytest.raises(ConversionError, match="ties to .*under peft only one of them changes"):
        from_adapters(gpt2(), [folder], example=WORDS)
    made = from_adapters(untied(), [folder], example=WORDS, check=False).eval()
    torch.testing.assert_close(made(**WORDS)[0], answer, rtol=1e-5, atol=1e-5)


def test_an_updated_embedding_that_is_stored_whole_too(tmp_path: Path) -> None:
    folder = trained(tmp_path, 1, network=llama(), target_modules=["embed_tokens"])
    assert any("base_layer" in name for name in load_file(folder / "adapter_model.safetensors"))
    made = from_adapters(llama(), [folder], example=WORDS, check=False).eval()
    answer = logits(peft.PeftModel.from_pretrained(llama(), folder), WORDS)
    torch.testing.assert_close(made(**WORDS)[0], answer, rtol=1e-5, atol=1e-5)
    other = llama()
    with torch.no_grad():
        other.model.embed_tokens.weight += 0.1
    with pytest.raises(ConversionError, match="embed_tokens.weight' beside its update, with other values"):
        from_adapters(other, [folder], example=WORDS)


def changed(folder: Path, **options: Any) -> Path:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **options}))
    return folder


def test_adapters_that_are_refused(tmp_path: Path) -> None:
    good = trained(tmp_path / "good", 1)
    other = trained(tmp_path / "other", 1, network=llama(), target_modules=["q_proj"])
    with pytest.raises(
        ConversionError, match="another base: it names 'model.layers.0.self_attn.q_proj.weight'"
    ):
        from_adapters(bert(), [good, other], example=WORDS)
    tensors = load_file(good / "adapter_model.safetensors")
    key = "base_model.model.bert.encoder.layer.0.attention.self.query.lora_A.weight"
    shapes = trained(tmp_path / "shapes", 1)
    save_file({**tensors, key: torch.zeros(4, 17)}, shapes / "adapter_model.safetensors")
    with pytest.raises(ConversionError, match=r"another base.*query.weight' has the shapes \(4, 17\)"):
        from_adapters(bert(), [shapes], example=WORDS)
    dora = trained(tmp_path / "dora", 1, use_dora=True)
    with pytest.raises(ConversionError, match="use_dora=True, which covey's low-rank updates do not have"):
        from_adapters(bert(), [dora], example=WORDS)
    with pytest.raises(ConversionError, match="is a LOHA adapter"):
        from_adapters(bert(), [changed(trained(tmp_path / "kind", 1), peft_type="LOHA")], example=WORDS)
    with pytest.raises(ConversionError, match="init_lora_weights='pissa', which changes the base"):
        from_adapters(
            bert(), [changed(trained(tmp_path / "pissa", 1), init_lora_weights="pissa")], example=WORDS
        )
    with pytest.raises(StoreError, match="lora_alpha"):
        from_adapters(bert(), [changed(trained(tmp_path / "alpha", 1), lora_alpha="much")], example=WORDS)
    pickled = trained(tmp_path / "pickled", 1)
    (pickled / "adapter_model.safetensors").rename(pickled / "adapter_model.bin")
    with pytest.raises(StoreError, match="only adapter_model.bin, which is a pickle and could run code"):
        from_adapters(bert(), [pickled], example=WORDS)
    with pytest.raises(StoreError, match=r"query.weight' has rank 4, and adapter_config.json says \[8\]"):
        from_adapters(bert(), [changed(trained(tmp_path / "ranks", 1), r=8)], example=WORDS)
    with pytest.raises(
        ConversionError, match="query.weight' has rank 40, and the weight has rank 16 at most"
    ):
        from_adapters(bert(), [trained(tmp_path / "large", 1, r=40)], example=WORDS)
    half = trained(tmp_path / "half", 1)
    save_file({k: v for k, v in tensors.items() if k != key}, half / "adapter_model.safetensors")
    with pytest.raises(StoreError, match="query.weight' has no lora_A"):
        from_adapters(bert(), [half], example=WORDS)
    with pytest.raises(StoreError, match="is not a folder"):
        from_adapters(bert(), [tmp_path / "nothing"], example=WORDS)
    with pytest.raises(OptionError, match="a list of adapters' folders"):
        from_adapters(bert(), str(good), example=WORDS)


def test_members_that_are_no_adapters(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="members of BatchEnsemble are no low-rank updates"):
        save_adapters(ensemble(bert(), covey.BatchEnsemble(members=2)), tmp_path)
    with pytest.raises(ConversionError, match=r"the base was trained too \(base=1\)"):
        save_adapters(ensemble(bert(), covey.LowRank(members=2, rank=2, base=1.0)), tmp_path)
    with pytest.raises(ConversionError, match="'transformer.wte.weight', which is tied.*own=()"):
        save_adapters(ensemble(gpt2(), covey.LowRank(members=2, rank=2)), tmp_path)
    biased = covey.LowRank(members=2, rank=2, own=(r"query.bias$",))
    with pytest.raises(ConversionError, match="copies of .*query.bias' beside an update of the same layer"):
        save_adapters(ensemble(bert(), biased), tmp_path)
    normed = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    made = covey.convert(normed, covey.LowRank(members=2, rank=2), example=torch.ones(2, 4))
    with pytest.raises(ConversionError, match="running statistics of its own"):
        save_adapters(made, tmp_path)
    assert not list(tmp_path.iterdir())


# --- what LowRank itself makes of the hard cases ----------------------------------------------------------------------


def test_ranks_and_tied_embeddings() -> None:
    with pytest.raises(
        ConversionError, match="rank 40 is more than .*query.weight.* has: as a matrix it is 16 x 16"
    ):
        covey.convert(bert(), covey.LowRank(rank=40, where="query"), example=WORDS)
    # the head of GPT-2 is its embedding: by default every member has a copy of it already
    with pytest.raises(ConversionError, match="'transformer.wte.weight' is a copy of each member's already"):
        covey.convert(gpt2(), covey.LowRank(rank=2, where="transformer.wte"), example=WORDS)
    with pytest.raises(ConversionError, match=r"could have a low-rank update of its own\.$"):
        covey.convert(bert(), covey.LowRank(rank=2, where="LayerNorm"), example=WORDS)
    # without copies the update acts in both places, and the tie holds
    method = covey.LowRank(members=2, rank=2, where="transformer.wte", own=())
    made = stirred(covey.convert(gpt2(), method, example=WORDS, check=True))
    network = made.member(0)
    assert network.lm_head.weight is network.transformer.wte.weight
    torch.testing.assert_close(made.eval()(**WORDS)[0], logits(network, WORDS), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", [covey.LowRank(members=2, rank=4), covey.SharedLowRank(members=2, rank=4)])
def test_every_factor_of_a_bert_learns(method: covey.Method) -> None:
    made = ensemble(bert(), method).train()
    optimiser = torch.optim.AdamW(made.param_groups(lr=0.01))
    for _ in range(2):
        made.loss(WORDS, torch.tensor([0, 1, 2])).backward()
        optimiser.step()
        optimiser.zero_grad()
    made.loss(WORDS, torch.tensor([0, 1, 2])).backward()
    update = made.parts["low_rank"]
    for store in (update.a, update.b):
        for name, factor in store.items():
            assert factor.grad is not None, name
            assert factor.grad.flatten(1).any(1).all(), name  # of every member


class Linear4bit(nn.Linear):
    """Stands for a quantised layer: what tells one is where its class comes from."""


Linear4bit.__module__ = "bitsandbytes.nn.modules"


def test_a_quantised_base() -> None:
    network = bert()
    network.bert.pooler.dense = Linear4bit(16, 16)
    with pytest.raises(ConversionError, match="'bert.pooler.dense' is quantised.*bfloat16"):
        covey.convert(network, covey.LowRank(rank=2), example=WORDS)
    half = covey.convert(bert().to(torch.bfloat16), covey.LowRank(members=2, rank=2), example=WORDS)
    assert half.eval()(**WORDS).dtype == torch.bfloat16
