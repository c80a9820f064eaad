"""The user's own data: image folders, tables, arrays, texts, and what is said when they are wrong."""

import json

import numpy as np
import pandas
import pytest
import torch
from PIL import Image

from covey.data import load, prepare, read_inputs
from covey.errors import DataError


def picture(path, size=(10, 8), colour=(10, 20, 30), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)


def image_folder(root, parts=("train/",), classes=("cat", "dog"), n=10):
    for part in parts:
        for k, name in enumerate(classes):
            for i in range(n):
                picture(root / f"{part}{name}/{i}.png", colour=(100 * k, i, 7))
    return root


# images


@pytest.mark.parametrize("parts", [("train/",), ("",)])
def test_a_folder_that_is_split_by_us(tmp_path, parts):
    data = load(image_folder(tmp_path, parts))
    assert data.classes == ("cat", "dog")
    assert data.shape == (3, 8, 10)
    assert (len(data.train), len(data.validation), len(data.test)) == (14, 2, 4)
    assert data.train.inputs[data.train.targets == 1, 0].unique().tolist() == [100]


def test_parts_of_the_users_own_are_kept(tmp_path):
    data = load(image_folder(tmp_path, ("train/", "val/", "test/")))
    assert (len(data.train), len(data.validation), len(data.test)) == (20, 20, 20)
    assert data.record["taken_from"] == {"train": "train", "validation": "validation", "test": "test"}


def test_imagenets_val_is_the_test_set(tmp_path):
    root = image_folder(tmp_path, ("train/", "val/"), ("n01440764", "n01443537"))
    data = load(root)
    assert (len(data.train), len(data.validation), len(data.test)) == (18, 2, 20)
    assert data.record["notes"] == ["val/ is the test set, for want of one; validation comes from train/"]


def test_image_size_scales_and_takes_the_middle(tmp_path):
    root = image_folder(tmp_path)
    wide = Image.new("RGB", (40, 10), (0, 0, 0))
    wide.paste((255, 255, 255), (15, 0, 25, 10))  # a white square in the middle
    wide.save(root / "train/cat/wide.png")
    data = load(root, image_size=5, validation=0.0, test=0.1)
    assert data.shape == (3, 5, 5)
    everything = torch.cat([data.train.inputs, data.test.inputs]).flatten(1)
    assert int((everything.double().mean(1) > 200).sum()) == 1  # the black sides are gone
    assert load(root, image_size=(6, 7)).shape == (3, 6, 7)
    assert load(root, image_size=(1, 6, 7)).shape == (1, 6, 7)


def test_mixed_sizes(tmp_path):
    picture(image_folder(tmp_path) / "train/dog/big.png", (20, 8))
    with pytest.raises(DataError, match=r"mixed sizes:.* 8 x 10,.*big.png is 8 x 20.*give image_size"):
        load(tmp_path)


def test_mixed_channel_counts(tmp_path):
    picture(image_folder(tmp_path) / "train/dog/grey.png", colour=5, mode="L")
    with pytest.raises(DataError, match=r"mixed channel counts:.* has 3, .*grey.png has 1"):
        load(tmp_path)
    assert load(tmp_path, image_size=(3, 8, 10)).shape == (3, 8, 10)


def test_an_unreadable_image_is_named(tmp_path):
    (image_folder(tmp_path) / "train/dog/broken.png").write_bytes(b"\x89PNG\r\n\x1a\n rubbish")
    with pytest.raises(DataError, match=r"cannot read the image .*train/dog/broken.png"):
        load(tmp_path)


def test_sixteen_bits_are_refused(tmp_path):
    picture(image_folder(tmp_path) / "train/dog/deep.png", colour=5, mode="I;16")
    with pytest.raises(DataError, match=r"deep.png: it has mode I;16; images of 8 bits"):
        load(tmp_path)


def test_empty_folders(tmp_path):
    with pytest.raises(DataError, match="has no class folders; expected"):
        load(tmp_path)
    (tmp_path / "train/cat").mkdir(parents=True)
    with pytest.raises(DataError, match="holds no images below its class folders"):
        load(tmp_path)


def test_one_class_only(tmp_path):
    with pytest.raises(DataError, match="there is one class only, 'cat'"):
        load(image_folder(tmp_path, classes=("cat",)))


def test_a_class_with_too_few_images(tmp_path):
    picture(image_folder(tmp_path) / "train/newt/1.png")
    with pytest.raises(DataError, match="class 'newt' has only 1 sample, too few"):
        load(tmp_path)


def test_a_class_that_training_does_not_have(tmp_path):
    picture(image_folder(tmp_path, ("train/", "test/")) / "test/newt/1.png")
    with pytest.raises(DataError, match=r"has classes that .*train has not: newt"):
        load(tmp_path)


def test_images_that_do_not_fit_into_memory(tmp_path):
    with pytest.raises(DataError, match=r"the images need .* GiB .* give a smaller image_size"):
        load(image_folder(tmp_path), image_size=1_000_000)


# tables


def people(n=200):
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(
        {
            "age": rng.normal(40, 10, n),
            "weight": np.where(rng.random(n) < 0.2, np.nan, rng.normal(70, 9, n)),
            "city": rng.choice(["Rome", "Oslo", None], n),
            "member": rng.random(n) < 0.5,
            "since": pandas.Timestamp("2020-01-01") + pandas.to_timedelta(rng.integers(0, 999, n), unit="D"),
        }
    )
    frame["income"] = 3 * frame["age"] + rng.normal(size=n)
    frame["vote"] = rng.choice(["left", "right", "none"], n)
    return frame


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_a_table_by_hand(tmp_path, suffix):
    frame, path = people(), tmp_path / f"people{suffix}"
    if suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.drop(columns="since").to_csv(path, index=False, sep="\t" if suffix == ".tsv" else ",")
    data = load(path, target="income", test=0.25)
    assert data.task == "regression"
    assert data.record["notes"] == ["target 'income': regression, since it has 200 distinct numbers"]
    names = [column["name"] for column in data.record["columns"]]
    assert "income" not in names
    # Find the training rows again by their target, and redo what should have happened to them.
    incomes = data.target_normalisation.restore(data.train.targets.double()).numpy()
    rows = np.array([np.abs(frame["income"] - value).argmin() for value in incomes])
    train = frame.iloc[rows]
    age = (train["age"] - train["age"].mean()) / train["age"].std(ddof=0)
    np.testing.assert_allclose(data.train.inputs[:, 0], age, atol=1e-5)
    weight = (train["weight"] - train["weight"].mean()) / train["weight"].std(ddof=0)
    np.testing.assert_allclose(data.train.inputs[:, 1], weight.fillna(0), atol=1e-5)
    np.testing.assert_array_equal(data.train.inputs[:, 2], train["weight"].isna())
    cities = data.record["columns"][2]["values"]
    assert cities == ["(missing)", "Oslo", "Rome"]
    np.testing.assert_array_equal(data.train.inputs[:, 4], train["city"] == "Oslo")
    assert data.shape == (10 + (suffix == ".parquet"),)
    assert json.loads(json.dumps(data.record)) == data.record


def test_only_training_rows_decide_the_scale(tmp_path):
    people().to_csv(tmp_path / "a.csv", index=False)
    data = load(tmp_path / "a.csv", target="income")
    assert float(data.train.inputs[:, 0].mean()) == pytest.approx(0, abs=1e-6)
    assert abs(float(data.test.inputs[:, 0].mean())) > 1e-3


@pytest.mark.parametrize(
    ("values", "task", "words"),
    [
        (["a", "b", "c"] * 40, "classification", "since it is not numeric"),
        ([0.0, 1.0] * 60, "classification", "since it has two values"),
        ([True, False] * 60, "classification", "since it has two values"),
        ([1, 2, 3, 4, 5] * 24, "classification", "5 whole values only"),
        (list(range(120)), "regression", "120 distinct numbers"),
        ([0.5, 1.5, 2.5] * 40, "regression", "3 distinct numbers"),
    ],
)
def test_the_task_is_found_out_and_said(tmp_path, values, task, words):
    pandas.DataFrame({"x": np.arange(120.0), "y": values}).to_csv(tmp_path / "a.csv", index=False)
    data = load(tmp_path / "a.csv", target="y")
    assert data.task == task
    assert words in data.record["notes"][0]


def test_the_task_can_be_said(tmp_path):
    pandas.DataFrame({"x": np.arange(120.0), "y": [1, 2, 3, 4, 5] * 24}).to_csv(
        tmp_path / "a.csv", index=False
    )
    data = load(tmp_path / "a.csv", target="y", task="regression")
    assert data.task == "regression"
    assert data.record["notes"] == ["target 'y': regression, as asked for"]


def test_rare_and_new_categories(tmp_path):
    frame = pandas.DataFrame({"word": [f"w{k}" for k in range(100)] * 2, "y": [0, 1] * 100})
    frame.to_csv(tmp_path / "a.csv", index=False)
    data = load(tmp_path / "a.csv", target="y")
    assert data.shape == (64,)
    assert data.record["columns"][0]["rare"] > 0
    frame["word"] = "never seen"
    frame.to_csv(tmp_path / "b.csv", index=False)
    _, inputs = read_inputs(tmp_path / "b.csv", data.record)
    assert not inputs.any()


@pytest.mark.parametrize(
    ("change", "target", "words"),
    [
        ({}, None, "say which column is to be predicted.*'age', 'weight'"),
        ({}, "incme", "has no column 'incme'; the nearest names are 'income'"),
        ({"income": 7.0}, "income", "the target is constant, 7.0"),
        ({"vote": "left"}, "vote", "there is one class only, 'left'"),
        (
            {"income": np.where(np.arange(200) == 3, np.nan, 1.5)},
            "income",
            r"missing \(NaN\) in 1 row, the first is row 3",
        ),
        ({"vote": ["rare", *["left", "right"] * 99, "left"]}, "vote", "class 'rare' has only 1 sample"),
        ({"weight": np.nan}, "income", "column 'weight' has no value in any training row"),
        (
            {"income": np.where(np.arange(200) == 3, np.inf, np.arange(200.0))},
            "income",
            "1 targets are missing or not finite",
        ),
    ],
)
def test_bad_tables(tmp_path, change, target, words):
    people().assign(**change).to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(DataError, match=words):
        load(tmp_path / "a.csv", target=target)


def test_words_cannot_be_regressed_on(tmp_path):
    people().to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(DataError, match="'vote' is not numeric"):
        load(tmp_path / "a.csv", target="vote", task="regression")


def test_files_that_are_no_tables(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"rubbish")
    with pytest.raises(DataError, match=r"cannot read the table .*a.parquet"):
        load(tmp_path / "a.parquet", target="y")
    (tmp_path / "a.csv").write_bytes(b"")
    with pytest.raises(DataError, match=r"cannot read the table .*a.csv"):
        load(tmp_path / "a.csv", target="y")
    (tmp_path / "b.csv").write_text("y\n1\n2\n")
    with pytest.raises(DataError, match="no column besides the target 'y'"):
        load(tmp_path / "b.csv", target="y")


def test_a_file_of_no_known_kind(tmp_path):
    (tmp_path / "a.xlsx").write_bytes(b"x")
    with pytest.raises(DataError, match=r"no reader for '.xlsx'; expected a folder of images, .csv"):
        load(tmp_path / "a.xlsx")


# arrays


def test_arrays_of_images_in_any_order_of_axes(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (30, 6, 5, 3), dtype=np.uint8)
    y = np.arange(30) % 3
    np.savez(tmp_path / "a.npz", x=x, y=y)
    data = load(tmp_path / "a.npz", validation=0.0)
    assert data.shape == (3, 6, 5)
    np.savez(
        tmp_path / "b.npz",
        x_train=x.transpose(0, 3, 1, 2),
        y_train=y,
        x_test=x[:9].transpose(0, 3, 1, 2),
        y_test=y[:9],
    )
    data = load(tmp_path / "b.npz", validation=0.0)
    np.testing.assert_array_equal(data.train.inputs.permute(0, 2, 3, 1), x)
    np.testing.assert_array_equal(data.test.targets, y[:9])
    np.savez(tmp_path / "c.npz", x=x[..., 0] / 255, y=y)
    data = load(tmp_path / "c.npz", validation=0.0)
    assert data.shape == (1, 6, 5)
    assert data.train.inputs.dtype == torch.float32
    assert float(data.prepare(data.train.inputs).mean()) == pytest.approx(0, abs=1e-5)


def test_arrays_of_columns(tmp_path):
    x = np.random.default_rng(0).normal(5, 3, (50, 4))
    np.savez(tmp_path / "a.npz", X=x, y=x.sum(1))
    data = load(tmp_path / "a.npz")
    assert data.task == "regression"
    assert data.shape == (4,)
    torch.testing.assert_close(data.train.inputs.mean(0), torch.zeros(4), atol=1e-5, rtol=0)
    np.savez(
        tmp_path / "b.npz",
        x_train=x,
        y_train=["a", "b"] * 25,
        x_val=x,
        y_val=["b", "a"] * 25,
        x_test=x,
        y_test=["a"] * 50,
    )
    data = load(tmp_path / "b.npz")
    assert data.classes == ("a", "b")
    assert (len(data.train), len(data.validation), len(data.test)) == (50, 50, 50)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"z": np.zeros(3)}, "has z; expected x and y, or x_train and y_train"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(4)}, r"x is \(3, 2\) and y is \(4,\)"),
        ({"x": np.zeros((9, 2, 2, 2, 2)), "y": np.arange(9) % 2}, r"expected \(N, D\), \(N, H, W\) or"),
        ({"x": np.zeros((3, 2)), "y": np.array([{}, {}, {}])}, "not an .npz file of plain arrays"),
        (
            {"x": np.full((9, 4, 4), np.nan), "y": np.arange(9) % 2},
            "missing .NaN., infinite or too large values",
        ),
        (
            {
                "x_train": np.zeros((3, 2)),
                "y_train": np.zeros(3),
                "x_test": np.zeros((3, 1)),
                "y_test": np.zeros(3),
            },
            "differ in shape",
        ),
    ],
)
def test_bad_arrays(tmp_path, arrays, words):
    np.savez(tmp_path / "a.npz", allow_pickle=True, **arrays)
    with pytest.raises(DataError, match=words):
        load(tmp_path / "a.npz")


# texts


def test_windows_of_a_text(tmp_path):
    content = bytes(range(200)) * 10
    (tmp_path / "a.txt").write_bytes(content)
    data = load(tmp_path / "a.txt", length=30, validation=0.1, test=0.1)
    assert data.task == "language"
    assert data.shape == (30,)
    assert (len(data.train), len(data.validation), len(data.test)) == (
        53,
        6,
        6,
    )  # (1600 - 1) // 30, (200 - 1) // 30
    for part, start in ((data.train, 0), (data.validation, 1600), (data.test, 1800)):
        assert part.inputs.flatten().tolist() == list(content[start : start + 30 * len(part)])
        assert part.targets.flatten().tolist() == list(content[start + 1 : start + 1 + 30 * len(part)])
    assert data.prepare(data.train.inputs[:2]).dtype == torch.int64
    assert data.record["notes"] == [
        "bytes in order, windows of 30; 50 bytes at the ends of the parts are not inputs"
    ]


def test_a_text_that_is_too_short(tmp_path):
    (tmp_path / "a.txt").write_text("short")
    with pytest.raises(DataError, match=r"is too short: .* a window of 128 needs 129"):
        load(tmp_path / "a.txt")
    with pytest.raises(DataError, match="below 1 in all"):
        load(tmp_path / "a.txt", validation=0.6, test=0.5)
    with pytest.raises(DataError, match="length of at least 1"):
        load(tmp_path / "a.txt", length=0)


# inputs for a trained network


def test_inputs_come_back_as_in_training(tmp_path):
    frame = people()
    frame.to_csv(tmp_path / "a.csv", index=False)
    data = load(tmp_path / "a.csv", target="income", validation=0.0, test=0.1)
    names, inputs = read_inputs(tmp_path / "a.csv", json.loads(json.dumps(data.record)))
    assert names == [str(k) for k in range(200)]
    rows = {tuple(row) for row in inputs.tolist()}
    assert all(tuple(row) in rows for row in data.test.inputs.tolist())
    frame.drop(columns="age").to_csv(tmp_path / "b.csv", index=False)
    with pytest.raises(DataError, match="has no column 'age', which the network was trained on"):
        read_inputs(tmp_path / "b.csv", data.record)
    frame.assign(age="old").to_csv(tmp_path / "c.csv", index=False)
    with pytest.raises(DataError, match="column 'age' held numbers in training"):
        read_inputs(tmp_path / "c.csv", data.record)


def test_images_and_arrays_for_a_trained_network(tmp_path):
    data = load(image_folder(tmp_path / "data"), image_size=8)
    for k in range(3):
        picture(tmp_path / f"new/{k}.png", (30, 20), colour=50 + k, mode="L")
    names, inputs = read_inputs(tmp_path / "new", data.record)
    assert names == ["0.png", "1.png", "2.png"]
    assert inputs.shape == (3, 3, 8, 8)
    torch.testing.assert_close(prepare(inputs, data.record), data.prepare(inputs))
    assert read_inputs(tmp_path / "new/1.png", data.record)[0] == ["1.png"]
    np.save(tmp_path / "x.npy", inputs.numpy())
    assert torch.equal(read_inputs(tmp_path / "x.npy", data.record)[1], inputs)
    np.save(tmp_path / "y.npy", inputs[:, :, :4].numpy())
    with pytest.raises(
        DataError, match=r"inputs of shape \(3, 4, 8\); the network was trained on \(3, 8, 8\)"
    ):
        read_inputs(tmp_path / "y.npy", data.record)
    with pytest.raises(DataError, match="is not there; expected an image"):
        read_inputs(tmp_path / "nowhere", data.record)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no images"):
        read_inputs(tmp_path / "empty", data.record)


def test_an_array_of_columns_for_a_trained_network(tmp_path):
    x = np.random.default_rng(0).normal(5, 3, (50, 4))
    np.savez(tmp_path / "a.npz", x=x, y=x.sum(1))
    data = load(tmp_path / "a.npz", validation=0.0, test=0.1)
    _, inputs = read_inputs(tmp_path / "a.npz", data.record)
    rows = {tuple(row) for row in inputs.tolist()}
    assert all(tuple(row) in rows for row in data.train.inputs.tolist())
    np.save(tmp_path / "b.npy", x[:, :3])
    with pytest.raises(DataError, match="has 3 columns; the network was trained on 4"):
        read_inputs(tmp_path / "b.npy", data.record)
