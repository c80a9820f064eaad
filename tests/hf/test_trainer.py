"""transformers' Trainer trains ensembles, and gives the numbers that covey gives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tiny_transformers import (
    WORDS,
    batch,
    bert,
    ensemble,
    gpt2,
    llama,
    pictures,
    rows,
    sentences,
    stirred,
    transformers,
    vit,
)
from torch import nn

import covey
from covey.data import adapt
from covey.errors import DataError, OptionError, StoreError
from covey.train import Machine, Recipe, Schedule

pytest.importorskip("accelerate")

from covey.hf import EnsembleModel, EnsembleTrainer

pytestmark = pytest.mark.filterwarnings("default")  # the Trainer warns for itself


def arguments(folder: Path, **options: Any) -> Any:
    settings = dict(
        per_device_train_batch_size=4,
        per_device_eval_batch_size=3,
        learning_rate=0.01,
        weight_decay=0.1,
        max_steps=4,
        lr_scheduler_type="constant",
        max_grad_norm=0,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
        logging_strategy="no",
    )
    return transformers.TrainingArguments(str(folder), **{**settings, **options})


def by_hand(made: covey.Ensemble, batches: list[dict[str, Any]], shift: bool = False) -> covey.Ensemble:
    """The same training without the Trainer: each member's mean loss, added up."""
    decayed, others = [], []
    for name, parameter in made.named_parameters():
        if parameter.requires_grad:
            (others if "bias" in name or "norm" in name.lower() else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=0.01)
    made.train()
    for given in batches:
        labels = given["labels"]
        outputs = made(**{name: value for name, value in given.items() if name != "labels"})
        if shift:
            outputs, labels = outputs[:, :, :-1], labels[:, 1:]
        loss = sum(F.cross_entropy(out.flatten(0, -2), labels.flatten()) for out in outputs)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return made


def in_order(data: list[dict[str, Any]], size: int, steps: int) -> list[dict[str, Any]]:
    """The batches that a Trainer takes which does not shuffle."""
    found = []
    for start in range(0, len(data), size):
        part = data[start : start + size]
        found.append({name: torch.stack([row[name] for row in part]) for name in part[0]})
    return [found[i % len(found)] for i in range(steps)]


def language() -> list[dict[str, Any]]:
    columns = batch()
    columns["labels"] = columns["input_ids"].masked_fill(columns["attention_mask"] == 0, -100)
    return rows(columns)


def tokens() -> list[dict[str, Any]]:
    columns = batch()
    columns["labels"] = (columns["input_ids"] % 3).masked_fill(columns["attention_mask"] == 0, -100)
    return rows(columns)


KINDS = {
    "sequence classifier": (bert, sentences),
    "token classifier": (lambda: bert("TokenClassification"), tokens),
    "causal language model": (llama, language),
    "image classifier": (vit, pictures),
}


@pytest.mark.parametrize("kind", KINDS)
def test_it_trains_as_a_loop_of_ones_own_does(kind: str, tmp_path: Path) -> None:
    make, data = KINDS[kind]
    trained = ensemble(make())
    expected = by_hand(ensemble(make()), in_order(data(), 4, 4), shift=kind.startswith("causal"))
    trainer = EnsembleTrainer(
        trained, arguments(tmp_path, train_sampling_strategy="sequential"), train_dataset=data()
    )
    trainer.train()
    for name, parameter in expected.named_parameters():
        torch.testing.assert_close(trained.get_parameter(name), parameter, msg=name, rtol=1e-4, atol=1e-6)


def test_it_trains_as_coveys_own_engine_does(tmp_path: Path) -> None:
    data = sentences()
    trained, expected = ensemble(bert()), ensemble(bert())
    given = arguments(tmp_path, train_sampling_strategy="sequential")
    trainer = EnsembleTrainer(trained, given, train_dataset=data, eval_dataset=data)
    trainer.train()
    columns = {name: torch.stack([row[name] for row in data]) for name in data[0]}
    recipe = Recipe(
        epochs=2,
        batch=4,
        shuffle=False,
        optimizer="adamw",
        lr=0.01,
        decay=0.1,
        decay_vectors=False,
        schedule=Schedule(kind="constant"),
        run="loop",
    )
    covey.fit(
        expected, adapt(columns, validation=0), recipe, machine=Machine(accelerator="cpu", progress=False)
    )
    for name, parameter in expected.named_parameters():
        torch.testing.assert_close(trained.get_parameter(name), parameter, msg=name, rtol=1e-4, atol=1e-6)
    ours = covey.evaluate(expected, columns).scores["ensemble"]
    theirs = trainer.scores().scores["ensemble"]
    assert theirs == {
        name: value if value is None else pytest.approx(value, rel=1e-4) for name, value in ours.items()
    }


@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_is_coveys(kind: str, tmp_path: Path) -> None:
    make, data = KINDS[kind]
    seen = []

    def metrics(found: Any) -> dict[str, float]:
        seen.append(found)
        return {"shape": float(found.predictions.ndim)}

    made = stirred(ensemble(make()))
    trainer = EnsembleTrainer(made, arguments(tmp_path), eval_dataset=data(), compute_metrics=metrics)
    (given,) = in_order(data(), 8, 1)
    labels = given.pop("labels")
    answer = made.predict(**given)
    trainer.evaluate()
    np.testing.assert_allclose(seen[0].predictions, answer.log_probs.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(seen[0].label_ids, labels.numpy())

    log_probs = answer.log_probs
    if kind.startswith("causal"):
        log_probs, labels = log_probs[:, :-1], labels[:, 1:]
    counts = labels != -100
    found = trainer.scores()
    assert found.about["samples"] == int(counts.sum())
    assert found.about["members"] == 3
    ensembles = found.scores["ensemble"]
    nll = F.nll_loss(log_probs[counts], labels[counts]).item()
    accuracy = (log_probs.argmax(-1) == labels)[counts].float().mean().item()
    assert ensembles["nll"] == pytest.approx(nll, rel=1e-5)
    assert ensembles["accuracy"] == pytest.approx(accuracy)
    if kind.startswith("causal"):
        assert ensembles["perplexity"] == pytest.approx(np.exp(nll), rel=1e-5)
    assert trainer.compute_metrics is metrics  # as before


class Reader(nn.Module):
    """Takes one tensor and answers with one, as covey's own data have it; no network of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = bert()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.inner(input_ids=tokens).logits


def test_scores_are_those_of_evaluate(tmp_path: Path) -> None:
    tokens = batch(20)["input_ids"]
    labels = tokens[:, 0] % 3
    made = stirred(covey.convert(Reader(), covey.LowRank(members=3, rank=4), example=tokens))
    data = rows({"tokens": tokens, "labels": labels})
    trainer = EnsembleTrainer(made, arguments(tmp_path))
    ours = trainer.scores(data, validation=data)
    theirs = covey.evaluate(made, (tokens, labels), validation=(tokens, labels))
    for kind in ("ensemble", "member_mean"):
        for name, value in theirs.scores[kind].items():
            assert ours.scores[kind][name] == (None if value is None else pytest.approx(value, rel=1e-5)), (
                name
            )
    assert ours.calibration["pooled"].values == pytest.approx(theirs.calibration["pooled"].values, rel=1e-3)


def test_loss_in_eval_mode_is_the_answers(tmp_path: Path) -> None:
    made = stirred(ensemble(bert()))
    (given,) = in_order(sentences(), 8, 1)
    labels = given["labels"]
    output = EnsembleModel(made).eval()(**given)
    answer = made.predict(input_ids=given["input_ids"], attention_mask=given["attention_mask"])
    assert output.loss.item() == pytest.approx(-answer.probs[range(8), labels].log().mean().item(), rel=1e-5)
    assert output.member_logits.shape == (8, 3, 3)  # samples, members, classes
    torch.testing.assert_close(output.member_logits.movedim(1, 0), answer.logits)
    without = EnsembleModel(made).eval()(input_ids=given["input_ids"])
    assert without.loss is None
    assert list(without) == ["logits", "member_logits"]


def test_accumulated_batches_are_one_batch(tmp_path: Path) -> None:
    # of different numbers of labels that count: the mean is over all of them
    data = language()
    one, several = ensemble(llama()), ensemble(llama())
    same = dict(max_steps=2, train_sampling_strategy="sequential", optim="sgd")
    EnsembleTrainer(
        one, arguments(tmp_path, per_device_train_batch_size=8, **same), train_dataset=data
    ).train()
    EnsembleTrainer(
        several,
        arguments(tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=4, **same),
        train_dataset=data,
    ).train()
    for name, parameter in one.named_parameters():
        torch.testing.assert_close(several.get_parameter(name), parameter, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "method",
    [covey.MIMO(members=2, repeats=2), covey.BatchEnsemble(members=2, gamma=0.3), covey.MultiHead(members=2)],
    ids=lambda method: type(method).__name__,
)
def test_the_methods_own_shares_and_gamma(method: covey.Method) -> None:
    # what `ens.loss` gives is what the Trainer goes down on: MIMO deals out samples, others scale shared gradients
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    given, labels = torch.randn(8, 5), torch.randint(3, (8,))
    made, twin = (covey.convert(network, method, example=given) for _ in range(2))
    torch.manual_seed(5)
    EnsembleModel(made).train()(input=given, labels=labels).loss.backward()
    torch.manual_seed(5)
    twin.train().loss(given, labels).backward()
    for name, parameter in made.named_parameters():
        torch.testing.assert_close(parameter.grad, twin.get_parameter(name).grad)


def test_groups_have_the_methods_factors(tmp_path: Path) -> None:
    made = ensemble(bert(), covey.SharedLowRank(members=2, rank=2, base=0.5))
    groups = EnsembleTrainer(made, arguments(tmp_path)).create_optimizer().param_groups
    rates = {(group["name"], group["members"]): group["lr"] for group in groups}
    assert rates["shared", False] == 0.005
    assert rates["replicated", True] == 0.01
    decays = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    assert len(decays) == sum(p.requires_grad for p in made.parameters())
    vectors = made.parts["low_rank"].r.parameters()
    assert {decays[id(p)] for p in vectors} == {0.0}
    for name, parameter in made.named_parameters():
        if name.endswith("bias"):
            assert decays[id(parameter)] == 0.0


def test_a_checkpoint_resumes_to_the_same_numbers(tmp_path: Path) -> None:
    settings = dict(max_steps=4, save_strategy="steps", save_steps=2, learning_rate=0.05)
    whole = ensemble(bert(), covey.LowRank(members=2, rank=2, dropout=0.2))
    EnsembleTrainer(whole, arguments(tmp_path / "a", **settings), train_dataset=sentences()).train()
    folder = tmp_path / "a" / "checkpoint-2"
    resumed = ensemble(bert(), covey.LowRank(members=2, rank=2, dropout=0.2))
    trainer = EnsembleTrainer(resumed, arguments(tmp_path / "b", **settings), train_dataset=sentences())
    trainer.train(resume_from_checkpoint=str(folder))
    for name, tensor in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], tensor), name
    loaded = covey.load(tmp_path / "a" / "checkpoint-4" / "ensemble", network=bert())
    assert torch.equal(loaded.eval()(**batch()), whole.eval()(**batch()))
    trainer.save_model(str(tmp_path / "c"))
    assert {path.suffix for path in (tmp_path / "c").rglob("*.*")} == {".json", ".safetensors"}

    other = ensemble(bert(), covey.LowRank(members=2, rank=4))
    refused = EnsembleTrainer(other, arguments(tmp_path / "d", **settings), train_dataset=sentences())
    with pytest.raises(StoreError, match="rank=2.*this trainer has LowRank.*rank=4"):
        refused.train(resume_from_checkpoint=str(folder))


def test_the_best_checkpoint_comes_back(tmp_path: Path) -> None:
    made = ensemble(bert())
    settings = dict(
        max_steps=4, save_strategy="steps", save_steps=1, eval_strategy="steps", eval_steps=1, learning_rate=0.3,
        load_best_model_at_end=True,
    )  # fmt: skip
    trainer = EnsembleTrainer(
        made, arguments(tmp_path, **settings), train_dataset=sentences(), eval_dataset=sentences()
    )
    trainer.train()
    best = covey.load(Path(trainer.state.best_model_checkpoint) / "ensemble", network=bert())
    assert torch.equal(best.eval()(**batch()), made.eval()(**batch()))
    losses = [row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row]
    assert trainer.evaluate()["eval_loss"] == pytest.approx(min(losses))


def test_label_smoothing_and_checkpointing_and_hf_datasets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    columns = {name: value.tolist() for name, value in in_order(sentences(), 8, 1)[0].items()}
    data = datasets.Dataset.from_dict({**columns, "comment": ["unused"] * 8})
    made, plain = ensemble(bert()), ensemble(bert())
    options = dict(max_steps=1, label_smoothing_factor=0.1, train_sampling_strategy="sequential")
    EnsembleTrainer(
        made, arguments(tmp_path, gradient_checkpointing=True, **options), train_dataset=data
    ).train()
    EnsembleTrainer(plain, arguments(tmp_path, **options), train_dataset=data).train()
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(made.get_parameter(name), parameter, rtol=1e-4, atol=1e-6)
    batched = ensemble(bert())
    batched.run = "batched"  # which checkpoints do not allow
    EnsembleTrainer(
        batched, arguments(tmp_path, gradient_checkpointing=True, **options), train_dataset=data
    ).train()
    torch.testing.assert_close(batched.state_dict(), made.state_dict())
    model = EnsembleModel(ensemble(bert()), smoothing=0.1).train()
    (given,) = in_order(sentences(), 8, 1)
    labels = given.pop("labels")
    outputs = model.ensemble(**given)
    expected = sum(F.cross_entropy(out, labels, label_smoothing=0.1) for out in outputs)
    torch.testing.assert_close(model(**given, labels=labels).loss, expected)


@pytest.mark.parametrize("task", ["regression", "gaussian"])
def test_regression(task: str, tmp_path: Path) -> None:
    made = stirred(ensemble(bert(labels=2 if task == "gaussian" else 1), task=task))
    data = [{**row, "labels": row["labels"].float()} for row in sentences(20)]
    trainer = EnsembleTrainer(made, arguments(tmp_path), train_dataset=data, eval_dataset=data)
    trainer.train()
    (given,) = in_order(data, 20, 1)
    goal = given.pop("labels")
    answer = made.predict(**given)
    assert trainer.predict(data).predictions == pytest.approx(answer.mean.numpy(), rel=1e-4)
    found = trainer.scores()
    rmse = (answer.mean[:, 0] - goal).square().mean().sqrt().item()
    assert found.scores["ensemble"]["rmse"] == pytest.approx(rmse, rel=1e-4)


@pytest.mark.parametrize("said_by", ["task", "problem_type"])
def test_scores_of_several_labels_at_once(said_by: str, tmp_path: Path) -> None:
    if said_by == "task":
        made = ensemble(bert(), task="multilabel")
    else:
        made = ensemble(bert(problem_type="multi_label_classification"))
    stirred(made)
    columns = batch()
    labels = torch.randint(2, (8, 3), generator=torch.Generator().manual_seed(0)).float()
    data = rows({**columns, "labels": labels})
    found = EnsembleTrainer(made, arguments(tmp_path), eval_dataset=data).scores().scores["ensemble"]
    probs = made.eval()(**columns).sigmoid().mean(0)
    assert found["accuracy"] == pytest.approx(((probs > 0.5) == (labels > 0.5)).float().mean().item())
    assert found["nll"] == pytest.approx(F.binary_cross_entropy(probs, labels).item(), rel=1e-4)


def test_scores_of_a_trainer_that_changes_what_its_metrics_see(tmp_path: Path) -> None:
    data = sentences()
    trainer = EnsembleTrainer(
        stirred(ensemble(bert())),
        arguments(tmp_path),
        eval_dataset={"one": data, "other": data},
        preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1),
        compute_metrics=lambda found: {"accuracy": (found.predictions == found.label_ids).mean()},
    )
    found = trainer.scores(data).scores["ensemble"]["accuracy"]
    assert trainer.evaluate(data)["eval_accuracy"] == pytest.approx(found)
    with pytest.raises(OptionError, match="several sets of data, one, other: give one of them"):
        trainer.scores()


def test_labels_of_another_name(tmp_path: Path) -> None:
    results = []
    for name in ("labels", "topic"):
        data = [
            {name if key == "labels" else key: value for key, value in row.items()} for row in sentences()
        ]
        made = ensemble(bert())
        given = {} if name == "labels" else {"label_names": [name]}
        trainer = EnsembleTrainer(made, arguments(tmp_path, **given), train_dataset=data, eval_dataset=data)
        trainer.train()
        results.append((trainer.evaluate()["eval_loss"], trainer.scores().scores["ensemble"]["nll"]))
    assert results[0] == pytest.approx(results[1])
    with pytest.raises(OptionError, match="label_names has 2: name it alone"):
        EnsembleTrainer(made, arguments(tmp_path, label_names=["a", "b"]))


def test_numbers_are_no_classes() -> None:
    with pytest.raises(DataError, match=r"labels are float32 of shape \(8,\); .*task='regression'"):
        EnsembleModel(ensemble(bert()))(**batch(), labels=torch.rand(8))


def test_several_labels_at_once(tmp_path: Path) -> None:
    made = stirred(ensemble(bert(problem_type="multi_label_classification")))
    columns = batch()
    labels = torch.randint(2, (8, 3)).float()
    output = EnsembleModel(made).eval()(**columns, labels=labels)
    probs = made.eval()(**columns).sigmoid().mean(0)
    torch.testing.assert_close(output.logits.sigmoid(), probs)
    assert output.loss.item() == pytest.approx(F.binary_cross_entropy(probs, labels).item(), rel=1e-4)
    trainer = EnsembleTrainer(
        made, arguments(tmp_path, max_steps=1), train_dataset=rows({**columns, "labels": labels})
    )
    trainer.train()


# --- what does not fit ---------------------------------------------------------------------------------------------


def test_labels_that_the_head_does_not_have() -> None:
    model = EnsembleModel(ensemble(bert())).train()
    with pytest.raises(
        DataError, match=r"labels hold 5; the network's head has 3 outputs, so labels are 0 to 2"
    ):
        model(**batch(), labels=torch.tensor([0, 1, 2, 0, 1, 2, 0, 5]))
    with pytest.raises(OptionError, match=r"targets have shape \(8, 4\)"):
        model(**batch(), labels=torch.zeros(8, 4))


def test_tokens_that_the_embedding_does_not_have(tmp_path: Path) -> None:
    made = ensemble(bert())
    columns = batch()
    columns["input_ids"][2, 1] = 25
    with pytest.raises(
        DataError, match="token 25; the network's embedding has tokens 0 to 19.*resize_token_emb"
    ):
        EnsembleModel(made)(**columns)
    tokenizers = pytest.importorskip("tokenizers")
    words = {f"w{i}": i for i in range(30)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    larger = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="w1")
    with pytest.raises(
        DataError, match="tokenizer does not fit: it has 30 tokens and the network's embedding 20"
    ):
        EnsembleTrainer(made, arguments(tmp_path), processing_class=larger)


def test_what_the_trainer_refuses(tmp_path: Path) -> None:
    made = ensemble(bert())
    with pytest.raises(OptionError, match="expected an ensemble.*got BertForSequenceClassification"):
        EnsembleTrainer(bert(), arguments(tmp_path))
    with pytest.raises(OptionError, match="covey.hf.push after training"):
        EnsembleTrainer(made, arguments(tmp_path, push_to_hub=True))
    with pytest.raises(OptionError, match="neftune_noise_alpha adds noise to one network's embedding"):
        EnsembleTrainer(made, arguments(tmp_path, neftune_noise_alpha=5.0))
    with pytest.raises(OptionError, match="give the ensemble as model"):
        EnsembleTrainer(made, arguments(tmp_path), model_init=bert)
    with pytest.raises(OptionError, match=r"no place for quantiles\(0.1, 0.5, 0.9\); train with covey.fit"):
        EnsembleTrainer(ensemble(bert(), task=covey.Quantiles((0.1, 0.5, 0.9))), arguments(tmp_path))
    with pytest.raises(OptionError, match="no data to score"):
        EnsembleTrainer(made, arguments(tmp_path)).scores()
    with pytest.raises(OptionError, match="every parameter of the ensemble is frozen"):
        EnsembleTrainer(made.requires_grad_(False), arguments(tmp_path)).create_optimizer()


def test_a_tied_head_is_shifted_too() -> None:
    made = stirred(ensemble(gpt2(), covey.LowRank(members=2, rank=2, own=())))
    columns = batch()
    tokens = columns["input_ids"]
    # in eval mode, since this network drops out
    made.eval()
    model = EnsembleModel(made)
    model.training = True
    loss, outputs = model(**columns, labels=tokens).loss, made(**columns)[:, :, :-1]
    expected = sum(F.cross_entropy(out.flatten(0, 1), tokens[:, 1:].flatten()) for out in outputs)
    torch.testing.assert_close(loss, expected)


def test_a_batch_s_part_of_a_loss_over_several_processes() -> None:
    model = EnsembleModel(stirred(ensemble(bert()))).eval()
    (given,) = in_order(sentences(), 8, 1)
    whole = model(**given).loss
    parts = [model(**{k: v[i : i + 4] for k, v in given.items()}, num_items_in_batch=8).loss for i in (0, 4)]
    torch.testing.assert_close(sum(parts), whole)


HERE = Path(__file__).parent


def in_processes(folder: Path, processes: int) -> dict[str, torch.Tensor]:
    """What a Trainer finds with eight samples a step, in one process or several that torchrun starts."""
    folder.mkdir()
    several = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    script = [str(HERE / "two_trainers.py"), str(folder), str(8 // processes)]
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{HERE.parents[1] / 'src'}:{HERE}"}
    command = [sys.executable, *(several if processes > 1 else []), *script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    return load_file(folder / "found.safetensors")


@pytest.mark.slow  # three processes import transformers
@pytest.mark.timeout(320)
def test_two_processes_train_and_evaluate_as_one_does(tmp_path: Path) -> None:
    one, two = in_processes(tmp_path / "one", 1), in_processes(tmp_path / "two", 2)
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=1e-5, atol=1e-6, msg=name)


def reader_and_writer(name: str) -> nn.Module:
    torch.manual_seed(0)
    parts: dict[str, Any] = {
        "decoder_start_token_id": 2,
        "pad_token_id": 0,
        "vocab_size": WORDS,
        "d_model": 16,
    }
    if name == "T5":
        config = transformers.T5Config(d_kv=8, d_ff=32, num_layers=1, num_heads=2, dropout_rate=0.0, **parts)
        return transformers.T5ForConditionalGeneration(config)
    for side in ("encoder", "decoder"):
        parts |= {f"{side}_layers": 1, f"{side}_attention_heads": 2, f"{side}_ffn_dim": 32}
    if name == "Bart":
        return transformers.BartForConditionalGeneration(transformers.BartConfig(dropout=0.0, **parts))
    config = transformers.WhisperConfig(
        num_mel_bins=4, max_source_positions=6, bos_token_id=1, eos_token_id=2, dropout=0.0, **parts
    )
    return transformers.WhisperForConditionalGeneration(config)


@pytest.mark.parametrize("name", ["T5", "Bart", "Whisper"])
def test_a_decoder_reads_what_it_should_write(name: str) -> None:
    network = reader_and_writer(name)
    given: dict[str, Any] = {"input_features": torch.randn(3, 4, 12)} if name == "Whisper" else batch(3)
    labels = batch(3, seed=1)["input_ids"]
    labels[0, -2:] = -100
    example = {**given, "decoder_input_ids": labels.clamp_min(0)}
    made = covey.convert(network, covey.LowRank(members=2, rank=2, own=()), example=example)
    wanted = network.eval()(**given, labels=labels).loss
    torch.testing.assert_close(EnsembleModel(made).eval()(**given, labels=labels).loss, wanted)
    torch.testing.assert_close(EnsembleModel(made).train()(**given, labels=labels).loss, 2 * wanted)


def test_labels_that_are_the_inputs_are_moved_by_the_trainer_alone() -> None:
    made, columns = ensemble(llama()), batch()
    copied = {**columns, "labels": columns["input_ids"]}
    with pytest.raises(DataError, match="labels are the input_ids themselves.*covey.hf.EnsembleTrainer"):
        made.loss(columns, columns["input_ids"])
    with pytest.raises(DataError, match="labels are the input_ids themselves"):
        covey.evaluate(made, copied)
    machine = Machine(accelerator="cpu", progress=False)
    with pytest.raises(DataError, match="labels are the input_ids themselves"):
        covey.fit(made, copied, Recipe(epochs=1, batch=4, run="loop"), machine=machine)
    moved = F.pad(columns["input_ids"][:, 1:], (0, 1), value=-100)
    ours = made.eval().loss(columns, moved, ignore_index=-100)
    theirs = EnsembleModel(made).eval()(**copied).member_logits
    each = F.cross_entropy(theirs.flatten(0, 1).flatten(0, 1), moved.flatten().repeat_interleave(3))
    torch.testing.assert_close(ours, 3 * each)
