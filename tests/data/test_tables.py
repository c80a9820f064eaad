"""Tables as they come: dates, other separators, free text; and folders with images that cannot be read."""

import json
import os

import numpy as np
import pandas
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from covey.data import load, read_inputs, summary
from covey.errors import DataError

ROWS = 120
IN_TEMPORARY = [HealthCheck.function_scoped_fixture]


def frame(**columns):
    rng = np.random.default_rng(0)
    return pandas.DataFrame({"x": rng.normal(size=ROWS), "y": np.arange(ROWS) % 2, **columns})


def days(count=ROWS, start="2020-01-01"):
    return pandas.Timestamp(start) + pandas.to_timedelta(
        np.random.default_rng(1).permutation(count), unit="D"
    )


def write(path, table, **options):
    table.to_csv(path, index=False, **options)
    return path


# dates


@pytest.mark.parametrize(
    "form",
    ["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S+00:00", "%Y/%m/%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y",
     "%d.%m.%Y %H:%M", "%d-%m-%Y", "%d.%m.%y", "%m/%d/%y", "%d %b %Y", "%d-%b-%Y", "%B %d, %Y", "%d %B %Y",
     "%m/%d/%Y %I:%M %p", "%d/%m/%Y %H:%M:%S.%f"],
)  # fmt: skip
def test_dates_become_one_number_each(tmp_path, form):
    dates = days()
    data = load(write(tmp_path / "a.csv", frame(since=dates.strftime(form))), target="y", validation=0.0)
    assert data.shape == (2,)
    spec = data.record["columns"][1]
    assert spec["kind"] == "date"
    assert spec["missing"] is False
    # By hand: the rows are known by x, their days since 1970 by the calendar.
    known = (dates - pandas.Timestamp(0)).days.to_numpy()
    rows = (known - spec["mean"]) / spec["std"]
    np.testing.assert_allclose(
        np.sort(torch.cat([data.train.inputs, data.test.inputs])[:, 1]), np.sort(rows), atol=1e-5
    )
    assert float(data.train.inputs[:, 1].double().mean()) == pytest.approx(0, abs=1e-5)
    assert "since: date in days since 1970, mean 2020-0" in summary(data)
    assert json.loads(json.dumps(data.record)) == data.record


def test_new_rows_are_read_in_the_format_of_training(tmp_path):
    data = load(write(tmp_path / "a.csv", frame(since=days().strftime("%d/%m/%Y"))), target="y")
    new = pandas.DataFrame(
        {"x": [0.0, 0.0], "since": ["02/03/2020", None]}
    )  # the second of March, and nothing
    _, inputs = read_inputs(write(tmp_path / "b.csv", new), data.record)
    spec = data.record["columns"][1]
    expected = ((pandas.Timestamp("2020-03-02") - pandas.Timestamp(0)).days - spec["mean"]) / spec["std"]
    assert inputs[:, 1].tolist() == pytest.approx([expected, 0.0])
    new["since"] = ["soon", "later"]
    with pytest.raises(DataError, match=r"'since' held dates such as '31/12/2020' in training"):
        read_inputs(write(tmp_path / "b.csv", new), data.record)


def test_dates_that_can_be_read_in_two_ways_are_noted(tmp_path):
    dates = [f"{month:02}/{day:02}/2020" for month in range(1, 13) for day in range(1, 11)]
    data = load(write(tmp_path / "a.csv", frame(since=dates)), target="y")
    assert (
        "column 'since': dates, read as %m/%d/%Y; every one could be %d/%m/%Y too" in data.record["notes"][1]
    )
    whole = load(write(tmp_path / "b.csv", frame(since=days().strftime("%Y-%m-%d"))), target="y")
    assert len(whole.record["notes"]) == 1


def test_missing_dates_and_times_of_other_files(tmp_path):
    table = frame(since=days())
    only_days = table.assign(since=table["since"].dt.date)
    only_days.to_parquet(tmp_path / "days.parquet")
    assert load(tmp_path / "days.parquet", target="y").record["columns"][1]["kind"] == "date"
    table.loc[::5, "since"] = None
    table.to_parquet(tmp_path / "a.parquet")
    data = load(tmp_path / "a.parquet", target="y")
    assert data.shape == (3,)  # a further column says what is missing
    _, inputs = read_inputs(write(tmp_path / "b.csv", table), data.record)
    assert int(inputs[:, 2].sum()) == ROWS / 5


@pytest.mark.parametrize(
    "values",
    [
        ["1.2.3", "1.2.4"],
        ["10.0.0.1", "10.0.0.2"],
        ["12-34-56", "99-99-99"],
        ["2020-13-45", "2020-01-01"],
        ["ab", "c"],
    ],
)
def test_what_looks_like_dates_and_is_none_is_a_category(tmp_path, values):
    data = load(write(tmp_path / "a.csv", frame(code=values * (ROWS // 2))), target="y")
    assert data.record["columns"][1]["kind"] == "category"


def test_numbers_that_are_too_large(tmp_path):
    table = frame(huge=np.where(np.arange(ROWS) % 2, 1e308, -1e308))
    with pytest.raises(DataError, match=r"column 'huge' reaches 1e\+308"):
        load(write(tmp_path / "a.csv", table), target="y")
    data = load(write(tmp_path / "b.csv", frame()), target="y")
    _, inputs = read_inputs(write(tmp_path / "c.csv", frame(x=1e300)), data.record)
    assert inputs.isinf().all()  # which `covey predict` refuses, with the rows


# separators


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_whatever_separates_columns(tmp_path, separator, encoding):
    table = frame(**{"a, b; c": np.arange(ROWS) % 7})
    path = write(tmp_path / "a.csv", table, sep=separator, encoding=encoding)
    data = load(path, target="y", test=0.25)
    assert [column["name"] for column in data.record["columns"]] == ["x", "a, b; c"]
    names, inputs = read_inputs(path, data.record)
    assert len(names) == ROWS
    assert inputs.shape == (ROWS, 2)


def test_decimal_commas(tmp_path):
    path = write(tmp_path / "a.csv", frame(whole=np.arange(ROWS)), sep=";", decimal=",")
    data = load(path, target="y")
    assert [column["kind"] for column in data.record["columns"]] == ["number", "number"]
    assert abs(data.record["columns"][0]["mean"]) < 1


def test_decimal_commas_in_one_column_alone(tmp_path):
    table = frame(price=[f"{k},5" for k in range(ROWS)])
    data = load(write(tmp_path / "a.csv", table, sep=";"), target="y")
    assert [column["kind"] for column in data.record["columns"]] == ["number", "number"]
    assert data.record["columns"][1]["mean"] == pytest.approx(60, abs=10)


def test_names_and_classes_without_the_spaces_around_them(tmp_path):
    rows = [f"{k}, {'ab'[k % 2]}, {'no' if k % 3 else 'yes '}" for k in range(ROWS)]
    (tmp_path / "A.CSV").write_text("\n".join(["x, letter, y ", *rows]))
    data = load(tmp_path / "A.CSV", target="y")
    assert data.classes == ("no", "yes")
    assert data.record["columns"][1]["values"] == ["a", "b"]


@pytest.mark.parametrize("first", ["0", "7.5"])
def test_rows_with_a_separator_at_their_end_and_rows_with_names(tmp_path, first):
    (tmp_path / "a.csv").write_text("x,z,y\n" + f"{first},2,a,\n1,3,b,\n" * 30)
    data = load(tmp_path / "a.csv", target="y")
    assert [column["mean"] for column in data.record["columns"]] == [
        pytest.approx((float(first) + 1) / 2),
        pytest.approx(2.5),
    ]
    (tmp_path / "b.csv").write_text("x,z,y\n" + "".join(f"{k},1.5,2,{'ab'[k % 2]}\n" for k in range(30)))
    with pytest.raises(DataError, match="rows have more values than its first line has names"):
        load(tmp_path / "b.csv", target="y")


def test_a_question_mark_is_a_missing_value(tmp_path):
    table = frame(age=["?" if k % 9 == 0 else str(k) for k in range(ROWS)])
    data = load(write(tmp_path / "a.csv", table), target="y")
    assert data.record["columns"][1]["kind"] == "number"
    assert data.record["columns"][1]["missing"] is True


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([f"{k % 90} kg" for k in range(ROWS)], "90 of its 90 values begin with a digit, such as '0 kg'"),
        ([f"{k % 90 + 1000:,}" for k in range(ROWS)], "such as '1,000'. If they are numbers"),
        (["-" if k % 9 == 0 else str(k % 90) for k in range(ROWS)], "such as '1' and not '-'"),
    ],
)
def test_words_that_look_like_numbers_are_noted(tmp_path, values, told):
    data = load(write(tmp_path / "a.csv", frame(b=values)), target="y")
    assert data.record["columns"][1]["kind"] == "category"
    assert any(told in note for note in data.record["notes"])


def test_a_running_number_is_noted(tmp_path):
    data = load(write(tmp_path / "a.csv", frame(id=np.arange(ROWS) + 1000)), target="y")
    assert any("column 'id' numbers the rows" in note for note in data.record["notes"])
    data = load(write(tmp_path / "b.csv", frame(b=np.arange(ROWS) % 50)), target="y")
    assert not any("numbers the rows" in note for note in data.record["notes"])


@pytest.mark.parametrize(
    ("known", "new"), [(["1", "2", "A"], ["1", "", "2"]), (["01", "02", "A"], ["01", "02", "02"])]
)
def test_codes_are_words_in_a_new_table_that_holds_only_numbers(tmp_path, known, new):
    data = load(write(tmp_path / "a.csv", frame(code=known * (ROWS // 3))), target="y")
    values = data.record["columns"][1]["values"]
    assert values == known
    (tmp_path / "new.csv").write_text("x,code\n" + "".join(f"0,{code}\n" for code in new))
    _, inputs = read_inputs(tmp_path / "new.csv", data.record)
    assert inputs[:, 1:].tolist() == [[float(code == value) for value in values] for code in new]


def test_truths_are_read_however_they_are_written(tmp_path):
    data = load(write(tmp_path / "a.csv", frame(code=["true", "false", ""] * (ROWS // 3))), target="y")
    (tmp_path / "new.csv").write_text("x,code\n0,TRUE\n0,False\n")
    _, inputs = read_inputs(tmp_path / "new.csv", data.record)
    assert inputs[:, 1:].sum(1).tolist() == [1, 1]


def test_a_new_table_with_a_value_of_another_kind(tmp_path):
    dates = days().strftime("%d.%m.%Y")
    data = load(write(tmp_path / "a.csv", frame(since=dates)), target="y")
    with pytest.raises(DataError, match=r"'x' held numbers in training, and here it holds 'many' in row 1$"):
        read_inputs(write(tmp_path / "b.csv", frame(since=dates, x=["1", "many"] * 60)), data.record)
    with pytest.raises(
        DataError, match=r"'since' held dates such as '31\.12\.2020' in .* holds 'soon' in row 0$"
    ):
        read_inputs(write(tmp_path / "c.csv", frame(since="soon")), data.record)


def test_a_target_of_words_that_mostly_differ(tmp_path):
    table = frame(price=[f"${k + 1000:,}" for k in range(ROWS)])
    with pytest.raises(DataError, match=r"120 of its 120 values differ, the first is '\$1,000': too many"):
        load(write(tmp_path / "a.csv", table), target="price")


@settings(max_examples=40, deadline=None, suppress_health_check=IN_TEMPORARY)
@given(content=st.binary(max_size=300))
def test_rubbish_is_an_error_of_ours(tmp_path, content):
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(DataError):
        load(tmp_path / "a.csv", target="no such column")


# free text


def sentences():
    return [f"The customer of row {row} was quite content with it." for row in range(ROWS)]


@pytest.mark.parametrize(
    ("values", "what"), [(sentences(), "free text"), ([f"id{row}" for row in range(ROWS)], "an identifier")]
)
def test_free_text_and_identifiers_are_refused_and_can_be_ignored(tmp_path, values, what):
    path = write(tmp_path / "a.csv", frame(comment=values))
    with pytest.raises(
        DataError,
        match=rf"column 'comment' looks like {what}: 120 of its 120.*ignore=\('comment',\)",
    ):
        load(path, target="y")
    data = load(path, target="y", ignore=("comment",))
    assert data.shape == (1,)
    assert "ignored columns: comment" in data.record["notes"]
    _, inputs = read_inputs(path, data.record)
    assert inputs.shape == (ROWS, 1)


def test_columns_that_cannot_be_ignored(tmp_path):
    path = write(tmp_path / "a.csv", frame())
    with pytest.raises(DataError, match=r"has no column 'xx' to ignore; the nearest names are 'x'"):
        load(path, target="y", ignore=("xx",))
    with pytest.raises(DataError, match="'y' is to be ignored and to be predicted"):
        load(path, target="y", ignore=("y",))
    with pytest.raises(DataError, match="no column besides the target 'y'"):
        load(path, target="y", ignore=("x",))
    with pytest.raises(DataError, match="ignore names columns of a table of your own"):
        load("digits", ignore=("x",))


# images that cannot be read


@pytest.fixture
def folder(tmp_path):
    """Images of two classes, 12 of each, of which three of dogs and one of a cat are broken."""
    for k, name in enumerate(("cat", "dog")):
        (tmp_path / name).mkdir()
        for i in range(12):
            Image.new("L", (4, 4), 100 * k + i).save(tmp_path / name / f"{i:02}.png")
    for name in ("cat/03.png", "dog/01.png", "dog/02.png"):
        (tmp_path / name).write_bytes(b"rubbish")
    (tmp_path / "dog/03.png").unlink()
    os.mkfifo(tmp_path / "dog/03.png")
    return tmp_path


def test_images_that_cannot_be_read_are_listed_together(folder):
    with pytest.raises(DataError, match="cannot read 4 of 24 images: ") as caught:
        load(folder)
    for word in (
        "cat/03.png",
        "dog/01.png",
        "dog/02.png",
        "dog/03.png: it is no ordinary file",
        "skip_bad=True",
    ):
        assert word in str(caught.value)
    for k in range(11):
        (folder / f"cat/{k:02}.png").write_bytes(b"rubbish")
    with pytest.raises(
        DataError, match=r"cannot read 14 of 24 images: .*; and 4 more; remove or replace them"
    ):
        load(folder)


def test_one_can_go_on_without_them(folder):
    data = load(folder, skip_bad=True, validation=0.1, test=0.2)
    everything = [
        (split.inputs[:, 0, 0, 0], split.targets) for split in (data.train, data.validation, data.test)
    ]
    levels, labels = (torch.cat(tensors) for tensors in zip(*everything, strict=True))
    assert len(levels) == 20
    assert torch.equal(labels, (levels >= 100).long()), "every image has its own label still"
    assert {3, 101, 102, 103}.isdisjoint(levels.tolist())
    assert "skipped, cannot read 4 of 24 images" in data.record["notes"][0]
    assert "cat/03.png" in summary(data)


def test_a_part_without_any_good_image(folder):
    (folder / "all" / "train").mkdir(parents=True)
    for name in ("cat", "dog"):
        (folder / name).rename(folder / "all" / "train" / name)
        (folder / "all" / "test" / name).mkdir(parents=True)
        (folder / "all" / "test" / name / "a.png").write_bytes(b"rubbish")
    with pytest.raises(DataError, match="none of the 2 images of the test part can be read"):
        load(folder / "all", skip_bad=True)


def test_whatever_a_decoder_stumbles_over_is_a_clear_error(tmp_path, monkeypatch):
    def stumbles(path):
        raise KeyError("numpy_type")  # pyarrow's, of a damaged description of the columns

    monkeypatch.setattr(pandas, "read_parquet", stumbles)
    (tmp_path / "table.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match="cannot read the table .*table.parquet: 'numpy_type'"):
        load(str(tmp_path / "table.parquet"), target="y")


# folders with other names, and with other files


def put(*paths):
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), 100).save(path)


def classes_below(place, count=6):
    put(*(place / name / f"{k}.png" for name in ("cat", "dog") for k in range(count)))


@pytest.mark.parametrize(
    ("parts", "counts"),
    [
        (("training", "testing"), (10, 2, 12)),
        (("Train", "VALID", "Test"), (12, 12, 12)),
        (("train", "valid"), (10, 2, 12)),
    ],
)
def test_parts_by_the_names_that_people_give_them(tmp_path, parts, counts):
    for part in parts:
        classes_below(tmp_path / part)
    data = load(tmp_path)
    assert data.classes == ("cat", "dog")
    assert (len(data.train), len(data.validation), len(data.test)) == counts


def test_parts_that_cannot_be_told_apart(tmp_path):
    classes_below(tmp_path / "test")
    classes_below(tmp_path / "val")
    with pytest.raises(DataError, match="has test/ and val/, but no train/ to train on"):
        load(tmp_path)
    classes_below(tmp_path / "valid")
    with pytest.raises(DataError, match="val and .*valid are both called like the validation part"):
        load(tmp_path)


def test_what_is_not_read_is_noted(tmp_path):
    classes_below(tmp_path / "train")
    classes_below(tmp_path / "extra")
    (tmp_path / "train" / "bird").mkdir()
    (tmp_path / "train" / "cat" / "phone.heic").write_bytes(b"")
    (tmp_path / "train" / "cat" / "._0.png").write_bytes(b"macOS")
    data = load(tmp_path)
    assert data.classes == ("cat", "dog")
    assert data.record["notes"][0] == "folders beside train/ that are not read: extra"
    assert "class folders without images, which are no classes: bird" in data.record["notes"]
    assert any(
        note.startswith("1 file not called like an image and not read") for note in data.record["notes"]
    )
    names, _ = read_inputs(tmp_path / "train" / "cat", data.record)
    assert names == [f"{k}.png" for k in range(6)]


def test_two_sets_of_one_name(tmp_path):
    for place in ("seen", "one/new", "two/new"):
        classes_below(tmp_path / place)
    with pytest.raises(DataError, match="two out-of-distribution sets are called 'new'"):
        load(tmp_path / "seen", ood=(str(tmp_path / "one/new"), str(tmp_path / "two/new")))
