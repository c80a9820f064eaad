"""What mistakes are told at the command line: flags that do not apply, and settings by their flags' names."""

import warnings

import pytest

from covey.cli.main import main
from covey.cli.spoken import in_flags

TABLE = "a;b;y\n" + "".join(f"{i};{i % 4};{'xz'[i % 2]}\n" for i in range(12))


@pytest.fixture
def told(tmp_path, monkeypatch, capsys):
    """The error of a command, which must be one line and leave no run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # a command replaces it
    (tmp_path / "t.csv").write_text(TABLE)

    def run(words):
        assert main([*words.split(), "--no-progress", "--folder", "run"]) == 2
        assert not (tmp_path / "run" / "settings.json").exists()
        return capsys.readouterr().err.strip().splitlines()[-1]

    return run


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train single --length 64", "digits: length is for texts, and these data are for classification"),
        ("train single --length 64 --data t.csv --target y", "leave it out (--length)"),
        ("train single --skip-bad", "digits is no folder of images"),
        ("train single --skip-bad --data t.csv --target y", "leave --skip-bad out"),
        (
            "train single --keep best --validation 0",
            "error: --keep best and patience go by a validation score",
        ),
        ("train single --loss mse", "error: --loss mse is for numbers"),
        ("train single --choose rmse --keep best", "error: --choose rmse is not defined"),
        ("train single --data t.csv", "which column is to be predicted with --target;"),
        ("train late-phase --network mlp --epochs 4", "error: --where norms matches nothing"),
        (
            "train single --schedule.kind multistep",
            "train single: --schedule.kind 'multistep' needs --schedule.milestones",
        ),
    ],
)
def test_mistakes_are_told_in_flags(told, words, message):
    assert message in told(words)


def test_only_settings_become_flags_and_quotes_stay():
    names = {"keep", "image_size"}
    for said, spoken in {
        "image_size=32, or keep='best'": "--image-size 32, or --keep best",
        "go on (keep=True), or image_size=-1": "go on (--keep), or --image-size -1",
        "leave it out (keep=('a b',))": "leave it out (--keep 'a b')",
        "give image_size=(3, H, W) for colour": "give --image-size 3 H W for colour",
        "image_size names a side; leave it out (--image-size)": "--image-size names a side; leave it out",
        "got (1, 8, 8); expected shape (2,)": "got 1 x 8 x 8; expected shape 2",
    }.items():
        assert in_flags(said, names) == spoken
    for same in (
        "got 'keep=best'",
        "MCDropout(keep=0.2)",
        "an option is written name=value",
        "--keep=best",
        "fit(..., keep=True)",
        "'image_size'",
    ):
        assert in_flags(same, names) == same
