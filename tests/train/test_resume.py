"""Runs that are killed, damaged or out of disk."""

import multiprocessing
import os
import random
import resource
import shutil
import signal
import time
from dataclasses import replace

import pytest
import torch
from small import blobs, mlp

import covey
from covey import Machine, Recipe, fit
from covey.data import Augment
from covey.errors import StoreError
from covey.tensor_files import write_tensors
from covey.train import checkpoint, same_run

QUIET = Machine(accelerator="cpu", progress=False)
RECIPE = Recipe(
    epochs=12, batch=8, lr=0.1, run="loop", checkpoint=1, ema=0.9, keep="best", augment=Augment(mixup=0.4)
)


def train(folder, recipe=RECIPE, resume=False):
    torch.set_num_threads(1)
    return fit(
        mlp(norm=True, dropout=0.2), blobs(), recipe, method=covey.BatchEnsemble(members=3), folder=folder,
        machine=QUIET, resume=resume,
    )  # fmt: skip


def stored(folder):
    ensemble = covey.load(folder / "ensemble", network=mlp(norm=True, dropout=0.2))
    return ensemble.state_dict()


@pytest.mark.slow
@pytest.mark.timeout(170)
def test_killed_twenty_times_ends_bit_identical(tmp_path):
    seed = int(os.environ.get("COVEY_SEED", time.time_ns() % 10_000))
    print("seed", seed)  # COVEY_SEED repeats it
    draw = random.Random(seed)
    undisturbed = train(tmp_path / "whole")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["covey.train", "lightning_fabric", "small"])
    kills = 0
    while True:
        process = context.Process(target=train, args=(tmp_path / "killed", RECIPE, True))
        process.start()
        process.join(None if kills == 20 else draw.uniform(0.0, 1.2))
        if process.exitcode is None:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            kills += 1
        elif kills < 20:  # it got to the end too early: start over, so that there is something to kill
            assert process.exitcode == 0
            for path in (tmp_path / "killed" / "checkpoints").iterdir():
                path.unlink()
        else:
            assert process.exitcode == 0
            break
    whole, killed = stored(tmp_path / "whole"), stored(tmp_path / "killed")
    assert whole.keys() == killed.keys()
    for name in whole:
        assert torch.equal(whole[name], killed[name]), name
    _, about, _ = checkpoint.newest(tmp_path / "killed")
    assert [{**row, "seconds": 0} for row in about["rows"]] == [
        {**row, "seconds": 0} for row in undisturbed.rows
    ]


def test_a_resumed_run_runs_members_as_it_did_before(tmp_path):
    recipe = replace(RECIPE, epochs=1, run="auto")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("covey.run.tune", lambda *_: "batched")
        assert train(tmp_path, recipe).ensemble.runs == {"train": "batched", "eval": "batched"}
        patch.setattr("covey.run.tune", lambda *_: "loop")
        assert train(tmp_path, recipe, resume=True).ensemble.runs == {"train": "batched", "eval": "batched"}


def test_a_damaged_checkpoint_is_passed_over(tmp_path, caplog):
    train(tmp_path, replace(RECIPE, epochs=2))
    older, newest = sorted((tmp_path / "checkpoints").iterdir())
    whole = newest.read_bytes()
    for broken in (whole[: len(whole) // 2], whole[:-4] + b"\x00\x01\x02\x03"):
        newest.write_bytes(broken)
        path, _, _ = checkpoint.newest(tmp_path)
        assert path == older
        assert "is damaged and not used" in caplog.text
    history = train(tmp_path, replace(RECIPE, epochs=2), resume=True)
    assert history.resumed == older


def test_other_settings_are_refused(tmp_path):
    train(tmp_path, replace(RECIPE, epochs=1))
    with pytest.raises(StoreError, match=r"other settings: lr was 0.1 and is 0.2.*Resume with the same"):
        train(tmp_path, replace(RECIPE, epochs=1, lr=0.2), resume=True)
    train(tmp_path, replace(RECIPE, epochs=1, checkpoint=None), resume=True)  # how often it saves may change


def test_settings_that_a_checkpoint_does_not_know_had_their_default():
    now = {
        "recipe": {"lr": 0.1, "new": None, "schedule": {"kind": "cosine", "warmup": 0.0}},
        "data": {"source": "a"},
    }
    was = {"recipe": {"lr": 0.1, "schedule": {"kind": "cosine"}}, "data": {"source": "a"}}
    same_run.check_settings("it", was, now)
    with pytest.raises(StoreError, match=r": schedule.warmup was 0.0 and is 2.0"):
        same_run.check_settings("it", was, {"recipe": {"schedule": {"warmup": 2.0}}})
    with pytest.raises(StoreError, match=r": old was None, and this covey has no such setting"):
        same_run.check_settings("it", {"recipe": {"lr": 0.1, "old": None}}, {"recipe": {"lr": 0.1}})


def rewritten(folder, dropped="nothing", **changes):
    """The newest checkpoint with other words in its record, and the checksum that goes with them."""
    path, about, tensors = checkpoint.newest(folder)
    about.pop("tensors")
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(dropped)}
    path.unlink()
    write_tensors(path.parent, path.name[:10], tensors, {"format": 2, **about, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"phase": 7}, "says phase 7 after"),
        ({"consumed": 10**9}, "and the run has 1 phases and 12 minibatches"),
        ({"rows": 3}, "rows should be a list"),
        ({"optimizer": {"99": {}}}, "remembers a parameter '99', which there is not"),
        ({"optimizer": {"0": {"momentum_buffer": 3}}, "dropped": "optimizer:0:"}, "as 3, not as a tensor"),
        ({"optimizer": {"0": {"step": 3}}}, r"remembers \['momentum_buffer', 'step'\] of parameter 0"),
        ({"optimizer": []}, "optimizer should be a table"),
        ({"runs": {"train": "loop"}}, "runs lacks 'eval'"),
        (
            {"layout": {"version": 1, "shared_buffers": [], "tensors": {}, "notes": {}, "facts": {}}},
            "does not fit",
        ),
        ({"settings": {}}, "settings lacks 'recipe'"),
        ({"tensors": {}}, "holds other tensors than its record says"),
        ({"notes": {"best": "high"}}, "notes.best should be a number"),
    ],
)
def test_a_checkpoint_whose_record_was_changed_is_refused(tmp_path, changes, words):
    recipe = replace(RECIPE, epochs=1)
    train(tmp_path, recipe)
    rewritten(tmp_path, **changes)
    with pytest.raises(StoreError, match=words):
        train(tmp_path, recipe, resume=True)


def test_an_ensemble_without_checkpoints_is_not_trained_over(tmp_path):
    recipe = replace(RECIPE, epochs=1)
    train(tmp_path, recipe)
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(
        StoreError, match="holds the ensemble of a finished run, which a new one would replace"
    ):
        train(tmp_path, recipe)


def test_nothing_to_resume_starts_from_the_beginning(tmp_path, caplog):
    with caplog.at_level("INFO", "covey"):
        history = train(tmp_path, replace(RECIPE, epochs=1), resume=True)
    assert history.resumed is None
    assert "starts from the beginning" in caplog.text


def test_a_full_disk_keeps_the_last_good_checkpoint(tmp_path):
    """A limit on the size of files stands in for a disk that is full: the first checkpoint fits, the next does not."""
    recipe = replace(RECIPE, epochs=1, checkpoint=None)
    train(tmp_path / "sizes", recipe)
    first, last = sorted(p.stat().st_size for p in (tmp_path / "sizes" / "checkpoints").iterdir())
    assert last > 2 * first
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, ((first + last) // 2, hard))
        with pytest.raises(StoreError, match=r"cannot write a checkpoint .*The one before is kept"):
            train(tmp_path / "run", recipe)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert [p.name[:11] for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["0000000000-"]
    assert train(tmp_path / "run", recipe, resume=True).last["epoch"] == 1


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (covey.MultiHead(members=5), r"method was MultiHead\(members=3\) and is MultiHead\(members=5\)\."),
        (covey.Packed(members=3), r"method was MultiHead\(members=3, where=.* and is Packed\(members=3, "),
    ],
)
def test_of_another_method_only_what_differs_is_told(now, told, tmp_path):
    stored = {"method": repr(covey.MultiHead(members=3))}
    same_run.check_settings(tmp_path, stored, dict(stored))
    with pytest.raises(StoreError, match=told):
        same_run.check_settings(tmp_path, stored, {"method": repr(now)})
