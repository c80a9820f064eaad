import numpy as np
import pytest
from PIL import Image

from covey.data import KNOWN, contact_sheet, list_known, load, summary
from covey.errors import DataError


def test_summary_of_images():
    words = summary(load("digits", held_out=(9,)))
    for part in ("classification, 9 classes", "1 x 8 x 8 uint8", "held-out: 180", "seed 0", "mean 0.30"):
        assert part in words
    assert len([line for line in words.splitlines() if line.endswith("#")]) == 9
    assert "1,133 train, 161 validation, 323 test" in words


def test_summary_of_a_table():
    words = summary(load("diabetes"))
    for part in ("regression", "bmi: number", "310 train, 44 validation, 88 test", "target         mean 15"):
        assert part in words


def test_every_known_set_is_listed():
    assert [line.split()[0] for line in list_known().splitlines()] == list(KNOWN)


def test_contact_sheet_shows_the_images(tmp_path):
    data = load("digits", held_out=(9,))
    path = contact_sheet(data, tmp_path / "new/sheet.png")
    sheet = np.asarray(Image.open(path).convert("L")).astype(int)
    assert sheet.shape[0] > 500
    assert sheet.shape[1] > 500
    # Black and white pixels are there in plenty: digits on black, white between them.
    assert (sheet < 5).mean() > 0.1
    assert (sheet > 250).mean() > 0.1


@pytest.mark.parametrize("name", ["wine", "diabetes"])
def test_contact_sheet_of_a_table(tmp_path, name):
    path = contact_sheet(load(name), tmp_path / "sheet.png")
    assert np.asarray(Image.open(path).convert("L")).std() > 10


def test_contact_sheet_of_a_text(tmp_path):
    (tmp_path / "a.txt").write_text(
        "All the world's a stage, $and$ all the men & women \x07 merely players.\n" * 200
    )
    path = contact_sheet(load(tmp_path / "a.txt"), tmp_path / "sheet.png")
    assert np.asarray(Image.open(path).convert("L")).std() > 10


def test_bad_places_for_a_contact_sheet(tmp_path):
    data = load("wine")
    with pytest.raises(DataError, match=r"is a PNG; got sheet.jpg"):
        contact_sheet(data, tmp_path / "sheet.jpg")
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="cannot write the contact sheet"):
        contact_sheet(data, tmp_path / "file/sheet.png")
