"""The page to try a service by hand, in a real browser: Debian's chromium, headless, driven through selenium."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from small_ensembles import ensemble
from torch import nn

from covey.calibration import Conformal, Intervals, Margin
from covey.serving import Limits, Model, application, bind

webdriver = pytest.importorskip("selenium.webdriver", reason="skipped: selenium is not installed")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        CHROMIUM is None or DRIVER is None,
        reason="skipped: no chromium and chromedriver (on Debian: apt-get install chromium chromium-driver)",
    ),
]


@contextmanager
def served(model: Any) -> Iterator[str]:
    import uvicorn

    place = bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(application(model, Limits()), log_level="error", ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [place]})
    thread.start()
    yield f"http://127.0.0.1:{place.getsockname()[1]}/"
    server.should_exit = True
    thread.join()
    place.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.binary_location = CHROMIUM
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.implicitly_wait(30)
    yield driver
    driver.quit()


def wait(browser: Any, condition: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 60).until(lambda page: page.execute_script(f"return {condition}"))


def test_an_image(browser, images, tmp_path):
    raw = np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)
    Image.fromarray(raw).save(tmp_path / "pet.png")
    with served(images) as address:
        browser.get(address)
        wait(browser, "!document.getElementById('go').disabled")
        assert browser.title == "pets"
        browser.find_element("id", "go").click()
        wait(browser, "document.getElementById('status').className === 'error'")
        assert "Choose an image first" in browser.find_element("id", "status").text
        browser.find_element("id", "file").send_keys(str(tmp_path / "pet.png"))
        wait(browser, "!document.getElementById('answer').hidden")
        prepared = images.prepared(torch.from_numpy(raw[None, None]))
        want = images.ensemble.predict(prepared)
        assert browser.find_element("id", "label").text == images.record["classes"][int(want.label)]
        assert browser.find_element("id", "entropy").text == f"{want.entropy.item():.4f}"
        assert not browser.find_element("id", "guarantee").is_displayed()
        assert len(browser.find_elements("css selector", ".member")) == 3
        shares = "return [...document.querySelectorAll('#ensemble .fill')].map(e => parseFloat(e.style.width) / 100)"
        assert np.allclose(browser.execute_script(shares), sorted(want.probs[0].tolist())[::-1], atol=1e-4)
        loaded = browser.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
        assert all(name.startswith((address, "data:", f"blob:{address}")) for name in loaded), loaded
        browser.save_screenshot(str(tmp_path / "image.png"))
        assert browser.get_log("browser") == []
        assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")


def test_sets_of_an_image_and_an_interval_of_a_row(browser, images, table, tmp_path):
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "pet.png")
    pets = ensemble(64, 3, head=(nn.Flatten(),))
    pets.conformal = Conformal("threshold", 0.05, 0.999)  # every class of a probability of 0.001
    with served(Model(ensemble=pets, record=images.record, name="pets")) as address:
        browser.get(address)
        wait(browser, "!document.getElementById('go').disabled")
        browser.find_element("id", "file").send_keys(str(tmp_path / "pet.png"))
        wait(browser, "!document.getElementById('answer').hidden")
        assert browser.find_element("id", "guarantee").text == "95 % conformal set: cat, dog, eel"
    wages = ensemble(*table.shape, 2, task="gaussian")
    wages.conformal = Intervals("absolute", 0.1, (2.0,))
    with served(Model(ensemble=wages, record=table.record, name="wages")) as address:
        browser.get(address)
        wait(browser, "!document.getElementById('go').disabled")
        browser.find_element("id", "column-3").send_keys("2021-01-01")
        browser.find_element("id", "go").click()
        wait(browser, "!document.getElementById('answer').hidden")
        mean = float(browser.find_element("id", "mean").text)
        told = browser.find_element("id", "guarantee").text
        # two standardised units are 20 of the target's
        assert told == f"90 % conformal interval: {mean - 20:.4f} to {mean + 20:.4f}"
        assert browser.get_log("browser") == []


def test_a_row_and_a_refusal(browser, table, tmp_path):
    with served(table) as address:
        browser.get(address)
        wait(browser, "!document.getElementById('go').disabled")
        assert len(browser.find_elements("css selector", "#fields label")) == 4
        browser.find_element("id", "column-3").send_keys("2021-01-01")
        browser.find_element("id", "go").click()
        wait(browser, "!document.getElementById('answer').hidden")
        assert "±" in browser.find_element("id", "label").text
        assert len(browser.find_elements("css selector", ".member")) == 3
        browser.save_screenshot(str(tmp_path / "row.png"))
        age = browser.find_element("id", "column-0")
        age.clear()
        age.send_keys("<b>old</b>")
        browser.find_element("id", "go").click()
        wait(browser, "document.getElementById('status').className === 'error'")
        told = browser.find_element("id", "status").text
        assert "column 'age': expected a number; got the text '<b>old</b>'" in told
        assert not browser.find_element("id", "answer").is_displayed()


def test_quantiles_and_an_interval(browser, table, tmp_path):
    answering = ensemble(*table.shape, 3, task="quantiles(0.1, 0.5, 0.9)")
    answering.conformal = Margin(0.1, 2.0)
    model = Model(ensemble=answering, record=table.record, name="wages")
    browser.get_log("browser")  # what other tests left
    with served(model) as address:
        browser.get(address)
        wait(browser, "!document.getElementById('go').disabled")
        browser.find_element("id", "column-3").send_keys("2021-01-01")
        browser.find_element("id", "go").click()
        wait(browser, "!document.getElementById('answer').hidden")
        told = [bar.text for bar in browser.find_elements("css selector", "#ensemble .what")]
        assert told == ["quantile 0.1", "quantile 0.5", "quantile 0.9"]
        numbers = [float(bar.text) for bar in browser.find_elements("css selector", "#ensemble .value")]
        assert numbers == sorted(numbers)
        # two standardised units are 20 of the target's
        assert numbers[0] - float(browser.find_element("id", "low").text) == pytest.approx(20, abs=1e-3)
        assert len(browser.find_elements("css selector", ".member")) == 3
        browser.save_screenshot(str(tmp_path / "quantiles.png"))
        assert browser.get_log("browser") == []
