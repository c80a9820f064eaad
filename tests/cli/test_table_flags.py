"""What the command line takes for granted about tables."""

import pytest
import torch

from covey.cli.main import main
from covey.scores.record import Record
from covey.scores.running import score
from covey.train import Recipe


@pytest.mark.parametrize(
    ("words", "optimizer", "lr", "epochs"),
    [
        (("--data", "rows.csv", "--target", "y"), "adamw", 3e-3, 60),
        (("--data=uci/yacht", "--epochs", "7"), "adamw", 3e-3, 7),
        (("--data", "iris", "--optimizer", "sgd", "--lr", "0.1"), "sgd", 0.1, 60),
        (("--data", "rows.csv", "--network", "hf:bert"), "adamw", 1e-4, 5),
        (("--data", "digits"), Recipe().optimizer, Recipe().lr, Recipe().epochs),
    ],
)
def test_tables_are_trained_as_the_estimators_train_them(words, optimizer, lr, epochs, monkeypatch):
    seen = {}
    monkeypatch.setattr("covey.cli.run.train", lambda settings, folder, **_: seen.update(s=settings) or 1 / 0)
    assert main(["train", "single", *words]) == 1
    recipe = seen["s"].recipe
    assert (recipe.optimizer, recipe.lr, recipe.epochs) == (optimizer, lr, epochs)


def test_a_regression_that_is_worse_than_the_mean_is_said_loudly():
    targets = torch.tensor([[1.0], [2.0], [3.0], [6.0]])
    off = targets + torch.tensor([[2.0], [-2.0], [2.0], [-2.0]])  # RMSE 2; the targets' deviation is 1.87
    for factor, said in ((1.0, True), (0.5, False)):
        outputs = (targets + factor * (off - targets))[None]
        record = Record(
            task="regression", outputs=outputs, targets=targets, variance=torch.ones_like(outputs)
        )
        notes = score(record).notes
        assert any("WORSE THAN THE MEAN: the RMSE is 2; " in note for note in notes) == said
        assert any("would give 1.871" in note for note in notes) == said
