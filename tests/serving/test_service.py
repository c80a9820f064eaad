"""The service answers as the library does, and refuses what it cannot answer, in-process."""

from __future__ import annotations

import copy
import io
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from PIL import Image
from small_ensembles import ensemble
from starlette.testclient import TestClient

from covey.calibration import Conformal
from covey.data.columns import encode
from covey.serving import Limits, Model, application
from covey.serving.batcher import Batcher

SMALL = Limits(rows=8, batch=4, queue=8, megabytes=0.05, seconds=20)


def client(model: Any, limits: Limits = SMALL) -> TestClient:
    return TestClient(application(model, limits), raise_server_exceptions=False)


@pytest.fixture(scope="module")
def pets(images):
    with client(images) as found:
        yield found


@pytest.fixture(scope="module")
def wages(table):
    with client(table) as found:
        yield found


def pixels(count: int = 2) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 1, 8, 8), dtype=np.uint8)


def png(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return file.getvalue()


def expected(model: Model, raw: torch.Tensor) -> Any:
    """The library's own answer, with the normalisation written out."""
    return model.ensemble.predict((raw.float() / 255 - 0.5) / 0.25)


def test_images_as_numbers_and_as_files_answer_as_the_library(pets, images):
    raw = pixels(6)  # more than a batch
    want = expected(images, torch.from_numpy(raw))
    as_pixels = pets.post("/predict", json={"pixels": raw.tolist(), "members": True})
    as_floats = pets.post("/predict", json={"inputs": (raw / 255).tolist()})
    sent = [("image", (f"{i}.png", png(image[0]))) for i, image in enumerate(raw)]
    as_files = pets.post("/predict", files=sent, data={"members": "true"})
    for answer in (as_pixels, as_floats, as_files):
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert body["classes"] == ["cat", "dog", "eel"]
        rows = body["predictions"]
        assert np.allclose([row["probs"] for row in rows], want.probs, atol=1e-6)
        assert np.allclose([row["entropy"] for row in rows], want.entropy, atol=1e-6)
        assert np.allclose([row["mutual_information"] for row in rows], want.mutual_information, atol=1e-6)
        assert [row["label"] for row in rows] == [body["classes"][i] for i in want.label]
        assert [row["defer"] for row in rows] == (want.entropy > 1.09).tolist()
    for answer in (as_pixels, as_files):
        own = [row["members"] for row in answer.json()["predictions"]]
        assert np.allclose(own, want.logits.softmax(-1).transpose(0, 1), atol=1e-6)
    assert "members" not in as_floats.json()["predictions"][0]


def test_rows_of_a_table_by_order_and_by_name(wages, table):
    rows = [[25, 1.6, "cook", "2021-01-01"], [60.5, None, "pilot", "2019-07-01"]]
    names = ["age", "height", "job", "since"]
    frame = pandas.DataFrame(rows, columns=names)
    want = table.ensemble.predict(encode(frame, table.columns, "the test"))
    by_name = [dict(zip(names, row, strict=True)) for row in rows]
    for sent in (rows, by_name):
        answer = wages.post("/predict", json={"rows": sent})
        assert answer.status_code == 200, answer.text
        found = pandas.DataFrame(answer.json()["predictions"])
        assert np.allclose(found["mean"], want.mean.flatten() * 10 + 100, rtol=1e-5)
        assert np.allclose(found["std"] ** 2, found["epistemic"] + found["aleatoric"], rtol=1e-4)
        assert np.allclose(found["epistemic"], want.epistemic.flatten() * 100, rtol=1e-4)
        assert found["defer"].tolist() == [False, False]


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b'{"inputs": [[[[NaN]]]]}', "holds NaN; expected finite numbers"),
        (b'{"inputs": [[[[1e999]]]]}', "expected numbers of shape (N, 1, 8, 8); got (1, 1, 1, 1)"),
        (b'{"inputs": [1, 2', "the body is not JSON"),
        (b"\xff\xfe\x00", "the body is not JSON"),
        (b"[1]", 'expected a JSON object with "inputs" or "pixels"; got a list of 1'),
        (b"{}", 'expected "inputs" or "pixels" in the request; got neither'),
        (b'{"inputs": []}', "at least one sample; got a list of 0"),
        (b'{"inputs": "/etc/passwd"}', "at least one sample; got a text"),
        (b'{"pixel": [1]}', "there is no 'pixel' in a request; the nearest names are 'pixels'"),
        (b'{"inputs": [[1, 2], [3]]}', "lists of unequal length"),
        (b'{"inputs": ["a"]}', '"inputs" holds texts; expected numbers'),
        (b'{"inputs": [null]}', "holds null"),
        (b'{"inputs": [[[[1.0, true]]]]}', '"inputs" holds true or false; expected numbers'),
        (b'{"pixels": [[[1], [false]]]}', '"pixels" holds true or false; expected numbers'),
        (b'{"inputs": [1], "members": 1}', "expected numbers of shape"),
    ],
)
def test_bodies_that_are_not_inputs(pets, sent, words):
    answer = pets.post("/predict", content=sent, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert words in answer.json()["error"]


def test_numbers_that_are_not_images(pets):
    def refused(**sent: Any) -> str:
        answer = pets.post("/predict", json=sent)
        assert answer.status_code == 422
        return answer.json()["error"]

    good = pixels(1)
    assert "put a single sample into a list" in refused(pixels=good[0].tolist())
    assert 'whole numbers from 0 to 255 as "pixels"' in refused(inputs=good.tolist())
    assert "whole numbers from 0 to 255" in refused(pixels=(good / 255).tolist())
    assert "whole numbers from 0 to 255" in refused(pixels=(good.astype(int) + 300).tolist())
    assert "infinite" in refused(inputs=np.full((1, 1, 8, 8), 1e300).tolist())
    assert "true or false" in refused(pixels=good.tolist(), members="yes")
    assert "above 0" in refused(pixels=good.tolist(), budget_ms=-1)
    assert "start it with --anytime" in refused(pixels=good.tolist(), budget_ms=5)
    deep = "[" * 20_000 + "]" * 20_000
    answer = pets.post("/predict", content='{"inputs": ' + deep + "}")
    assert answer.status_code == 422


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([[25, 1.6, "cook"]], "row 0 has 3 values; expected 4: age, height, job, since"),
        ([{"age": 3}], "row 0 has no 'height'"),
        ([5], "row 0: expected a list or an object; got a number"),
        ([[None, 1.6, "cook", "2021-01-01"]], "column 'age': no value was missing in training"),
        ([["25", 1.6, "cook", "2021-01-01"]], "column 'age': expected a number; got the text '25'"),
        ([[True, 1.6, "cook", "2021-01-01"]], "column 'age': expected a number; got true or false"),
        ([[[25], 1.6, "cook", "2021-01-01"]], "expected one value; got a list of 1"),
        ([[10**400, 1.6, "cook", "2021-01-01"]], "expected a finite number"),
        ([[1e300, 1.6, "cook", "2021-01-01"]], "too large"),
        ([[25, 1.6, "cook", 2021]], "expected a date as text"),
        ([[25, 1.6, "cook", "next week"]], "column 'since' held dates such as"),
    ],
)
def test_rows_that_are_not_those_of_training(wages, rows, words):
    answer = wages.post("/predict", json={"rows": rows})
    assert answer.status_code == 422
    assert words in answer.json()["error"]


def test_uploads_that_are_not_images(pets, wages):
    text = {"image": ("x.png", b"no image")}
    answer = pets.post("/predict", files=text)
    assert answer.status_code == 422
    assert answer.json()["error"] == "image 0: cannot be read as an image: its format is not known"
    word = pets.post("/predict", files=text, data={"members": "yes"}).json()["error"]
    assert word == "the field 'members' is a JSON value such as true or 5; got 'yes'"
    assert wages.post("/predict", files=text).status_code == 415
    broken = {"content-type": "multipart/form-data"}
    assert pets.post("/predict", content=b"x", headers=broken).status_code == 422
    no_file = pets.post("/predict", files={"a": (None, "b")})
    assert "there is no field 'a'" in no_file.json()["error"]
    kind = pets.post("/predict", content=b"x", headers={"content-type": "text/csv"})
    assert (kind.status_code, "expected application/json" in kind.json()["error"]) == (415, True)
    packed = pets.post("/predict", content=b"x", headers={"content-encoding": "gzip"})
    assert packed.status_code == 415


def test_too_many_samples_and_too_long_bodies(pets):
    answer = pets.post("/predict", json={"pixels": pixels(9).tolist()})
    assert (answer.status_code, "at most 8 samples; got 9" in answer.json()["error"]) == (413, True)

    def endless() -> Any:  # without a length that could be looked at first
        for _ in range(1000):
            yield b" " * 1024

    answer = pets.post("/predict", content=endless(), headers={"content-type": "application/json"})
    assert (answer.status_code, "at most 0.05 MiB" in answer.json()["error"]) == (413, True)


def test_an_answer_that_is_no_number_blames_its_request_alone(table):
    """Two requests of one batch, of which one overflows."""
    model = Model(ensemble=table.ensemble, record=table.record)
    with client(model, Limits(wait_ms=300)) as service, ThreadPoolExecutor(2) as pool:
        rows = ([25, 1.6, "cook", "2021-01-01"], [1e38, 1.6, "cook", "2021-01-01"])
        good, bad = pool.map(lambda row: service.post("/predict", json={"rows": [row]}), rows)
    assert good.status_code == 200
    assert bad.status_code == 422
    assert "NaN or infinite" in bad.json()["error"]


def test_the_open_inference_protocol(pets, images, wages):
    assert pets.get("/v2").json()["name"] == "covey"
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/pets/ready"):
        assert pets.get(path).status_code == 200
    told = pets.get("/v2/models/pets").json()
    assert told["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 1, 8, 8]}]
    raw = pixels(2)
    sent = {"name": "x", "shape": [2, 1, 8, 8], "datatype": "UINT8", "data": raw.flatten().tolist()}
    answer = pets.post("/v2/models/pets/infer", json={"id": "7", "inputs": [sent]}).json()
    assert (answer["id"], answer["model_name"]) == ("7", "pets")
    outputs = {output["name"]: output for output in answer["outputs"]}
    assert list(outputs) == [output["name"] for output in told["outputs"]]
    want = expected(images, torch.from_numpy(raw))
    assert outputs["probs"]["shape"] == [2, 3]
    assert np.allclose(np.reshape(outputs["probs"]["data"], (2, 3)), want.probs, atol=1e-6)
    half = json.dumps({"id": "\ud800", "inputs": [sent]})  # of a character
    assert pets.post("/v2/models/pets/infer", content=half).json()["id"] == "?"
    asked = {"inputs": [sent], "outputs": [{"name": "entropy"}]}
    assert len(pets.post("/v2/models/pets/infer", json=asked).json()["outputs"]) == 1
    columns = [
        {"name": "age", "shape": [1], "datatype": "FP64", "data": [25]},
        {"name": "height", "shape": [1, 1], "datatype": "FP64", "data": [[1.6]]},
        {"name": "job", "shape": [1], "datatype": "BYTES", "data": ["cook"]},
        {"name": "since", "shape": [1], "datatype": "BYTES", "data": ["2021-01-01"]},
    ]
    by_protocol = wages.post("/v2/models/wages/infer", json={"inputs": columns}).json()["outputs"][0]
    plain = wages.post("/predict", json={"rows": [[25, 1.6, "cook", "2021-01-01"]]}).json()
    assert by_protocol["data"] == [plain["predictions"][0]["mean"]]
    other = {"name": "agee", "shape": [1], "datatype": "FP64", "data": [25]}
    refused = wages.post("/v2/models/wages/infer", json={"inputs": [*columns, other]})
    assert refused.status_code == 422
    assert "there is no column 'agee'" in refused.json()["error"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shape": [2, 1, 8, 7]}, "128 values, which do not fit together"),
        ({"shape": [-1]}, "expected a list of sizes above 0"),
        ({"shape": [10**30]}, "do not fit together"),
        ({"datatype": "COMPLEX"}, "expected one such as FP32"),
        ({"datatype": "BYTES"}, "expected numbers such as FP32"),
        ({"data": [["a"]] * 128}, "its data are something else"),
        ({"data": [0.5] * 127 + [True]}, "its data are something else"),
        ({"name": "y"}, "expected one input, 'x'; got y"),
        ({"shape": [128]}, "at most 8 samples; got 128"),
        ({"shape": [8, 16]}, "expected numbers of shape (N, 1, 8, 8); got (8, 16)"),
    ],
)
def test_tensors_that_do_not_fit(pets, change, words):
    sent = {"name": "x", "shape": [2, 1, 8, 8], "datatype": "FP32", "data": [0.5] * 128} | change
    answer = pets.post("/v2/models/pets/infer", json={"inputs": [sent]})
    assert answer.status_code == (413 if change.get("shape") == [128] else 422)
    assert words in answer.json()["error"]


def test_a_tensor_that_is_there_twice(pets):
    sent = {"name": "x", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": [0.5] * 64}
    answer = pets.post("/v2/models/pets/infer", json={"inputs": [sent, sent]})
    assert (answer.status_code, answer.json()["error"]) == (
        422,
        "input 'x' is there twice; expected one tensor of each name",
    )


def test_paths_about_the_service(pets):
    assert pets.get("/health").json() == {"status": "ok"}
    told = pets.get("/metadata").json()
    assert told["takes"] == "image"
    assert told["defer"] == {"above": 1.09, "of": "entropy"}
    missing = pets.get("/../../etc/passwd")
    assert (missing.status_code, "there is no path" in missing.json()["error"]) == (404, True)
    assert pets.get("/predict").status_code == 405
    text = pets.get("/metrics").text
    samples = {
        line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in text.splitlines() if line[0] != "#"
    }
    assert int(samples['covey_requests_total{path="/predict",status="405"}']) >= 1
    assert int(samples['covey_requests_total{path="other",status="404"}']) >= 1
    assert samples['covey_request_seconds_bucket{le="+Inf"}'] == samples["covey_request_seconds_count"]
    page = pets.get("/")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for part in ("/", "/page.css", "/page.js"):
        assert "http" not in pets.get(part).text.replace("http-equiv", "")


class Held:
    """Stands in for an ensemble's run: counts its batches, and waits until it may go on."""

    def __init__(self) -> None:
        self.go, self.began, self.sizes = threading.Event(), threading.Event(), []

    def __call__(self, inputs: torch.Tensor, members: Any, each: bool) -> dict[str, list]:
        self.sizes.append(len(inputs))
        self.began.set()
        assert self.go.wait(20)
        if (inputs < 0).any():
            raise ValueError("below zero")
        return {"double": (2 * inputs[:, 0]).tolist()}


def test_requests_that_wait_share_a_batch_and_a_full_queue_says_so():
    held = Held()
    batcher = Batcher(held, Limits(batch=4, rows=4, queue=6, wait_ms=0), lambda *_: None)
    first = batcher.submit(torch.tensor([[1.0]]))
    assert held.began.wait(20)
    later = [batcher.submit(torch.full((2, 1), float(k))) for k in range(3)]
    with pytest.raises(Exception, match="6 samples wait, and the queue holds at most 6") as caught:
        batcher.submit(torch.zeros(1, 1))
    assert (caught.value.status, caught.value.headers) == (503, {"Retry-After": "1"})
    later[1].cancel()
    held.go.set()
    batcher.close()
    assert first.result()["double"] == [2.0]
    assert [later[k].result()["double"] for k in (0, 2)] == [[0.0, 0.0], [4.0, 4.0]]
    # The second and the third request were taken together, and the third was given up by then.
    assert held.sizes == [1, 2, 2]
    with pytest.raises(Exception, match="shutting down"):
        batcher.submit(torch.zeros(1, 1))


def test_a_failing_request_does_not_take_its_neighbours_with_it():
    held = Held()
    batcher = Batcher(held, Limits(batch=8, wait_ms=0), lambda *_: None)
    first = batcher.submit(torch.ones(1, 1))
    assert held.began.wait(20)
    good, bad = batcher.submit(torch.ones(2, 1)), batcher.submit(-torch.ones(1, 1))
    held.go.set()
    batcher.close()
    assert first.result()["double"] == [2.0]
    assert good.result()["double"] == [2.0, 2.0]
    with pytest.raises(ValueError, match="below zero"):
        bad.result()


def test_a_request_that_takes_too_long_is_given_up(images, monkeypatch):
    held = Held()
    monkeypatch.setattr(Model, "run", lambda self, *args: held(*args))
    sent = {"pixels": pixels(1).tolist()}
    with client(images, Limits(seconds=0.05)) as service:
        answer = service.post("/predict", json=sent)
        held.go.set()
    assert (answer.status_code, "no answer within 0.05 s" in answer.json()["error"]) == (504, True)


def test_a_fault_is_told_without_its_inside(images, monkeypatch):
    def broken(*_: Any) -> Any:
        raise RuntimeError("secret")

    monkeypatch.setattr(Model, "run", broken)
    with client(images) as service:
        answer = service.post("/predict", json={"pixels": pixels(1).tolist()})
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert json.loads(answer.text)["error"].startswith("this is a fault of the service")


def test_a_budget_of_time_takes_the_members_that_fit(images):
    from covey.scores import Anytime
    from covey.scores.subsets import Subset

    subsets = (Subset((1,), 10, 1.0, -0.9), Subset((0, 1), 20, 2.0, -0.5), Subset((0, 1, 2), 30, 4.0, -0.4))
    measured = Anytime(subsets, 4, "accuracy", images.ensemble)
    model = Model(ensemble=images.ensemble, record=images.record, anytime=measured)
    raw = pixels(2)
    prepared = (torch.from_numpy(raw).float() / 255 - 0.5) / 0.25
    with client(model) as service:
        answers = {}
        for budget in (0.5, 1.5, 3, 9):
            answers[budget] = service.post("/predict", json={"pixels": raw.tolist(), "budget_ms": budget})
    assert answers[0.5].status_code == 422
    assert "the fastest member, 1, takes" in answers[0.5].json()["error"]
    for budget, members in ((1.5, [1]), (3, [0, 1]), (9, [0, 1, 2])):
        found = answers[budget].json()
        assert found["members_used"] == members
        want = torch.stack([images.ensemble.member(k).eval()(prepared) for k in members]).softmax(-1).mean(0)
        assert np.allclose([row["probs"] for row in found["predictions"]], want.detach(), atol=1e-6)


def test_tasks_that_are_not_served(images, table):
    for record in (images.record | {"task": "language"}, images.record | {"task": "labels"}):
        with pytest.raises(ValueError, match="only runs that answer with one class or one number are served"):
            Model(ensemble=images.ensemble, record=record)
    # Four outputs are two means and two variances.
    two = ensemble(7, 4, task="gaussian")
    with pytest.raises(ValueError, match="one number per sample are served; this one gives more"):
        Model(ensemble=two, record=table.record, defer=1.0).warm_up()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"defer": float("nan")}, "--defer is a finite number"),
        ({"defer_by": "std"}, "--defer-by is one of entropy, mutual_information for classification"),
        ({"name": "a/b"}, "--name has letters"),
    ],
)
def test_models_that_cannot_be(images, options, words):
    with pytest.raises(ValueError, match=words):
        Model(ensemble=images.ensemble, record=images.record, **options)
    with pytest.raises(ValueError, match="--batch is a number of at least 1"):
        Limits(batch=0)
    with pytest.raises(ValueError, match="has no room for a request"):
        Limits(queue=1)


def test_half_of_a_character_is_refused_in_words(pets):
    """Found by `make fuzz`: the refusal quoted it, and could not be encoded."""
    body = b'{"inputs": "\\ud800"}'
    answer = pets.post("/predict", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["error"]


def test_what_was_fitted_for_all_members_is_not_said_of_some(images):
    fitted = copy.deepcopy(images.ensemble)
    fitted.conformal = Conformal("threshold", 0.1, 0.6)
    model = Model(ensemble=fitted, record=images.record)
    inputs = torch.zeros(2, 1, 8, 8)
    assert "set" in model.run(inputs)
    assert "set" not in model.run(inputs, members=(0, 2))
