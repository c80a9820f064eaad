"""Texts and pictures from files stay texts and pictures, whatever they hold."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hostile import HOSTILE, PAYLOADS
from parsed_page import Page, sha256
from PIL import Image, PngImagePlugin

from covey.errors import StoreError
from covey.report import write
from covey.report.markdown import escape
from covey.report.pictures import PREFIX, checked_picture
from covey.report.style import Figure, label, slug
from covey.report.svg import Drawings


@pytest.mark.slow  # see `hostile_pages`
def test_a_hostile_text_makes_no_element_attribute_or_address(
    hostile_pages: dict[str, Path], page: Path
) -> None:
    usual = {tag for tag, _ in Page(page.read_text()).elements}
    assert len(hostile_pages) > 12
    for where, file in hostile_pages.items():
        found = Page(file.read_text())
        assert {tag for tag, _ in found.elements} <= usual, where
        assert len(found.of("script")) == len(found.of("style")) == 1, where
        for tag, attributes in found.elements:
            for name, value in attributes.items():
                assert not name.startswith("on"), (where, tag, name)
                assert name != "style", (where, tag)
                if name in ("src", "href"):
                    assert value is not None
                    assert value.startswith(("#", "data:image/png;base64,", "data:,")), (where, value)
                    assert tag != "a" or value.startswith("#"), (where, value)


@pytest.mark.slow  # see `hostile_pages`
def test_a_hostile_text_is_shown_as_it_is(hostile_pages: dict[str, Path]) -> None:
    shown = " ".join(Page(hostile_pages["method"].read_text()).text("span").split())
    assert " ".join(HOSTILE.split()) in shown
    assert "{{7*7}}" in shown, "no template runs inside a text"
    title = Page(hostile_pages["everywhere"].read_text()).text("title")
    assert '<script>document.title="owned"</script>' in title


@pytest.mark.slow  # see `hostile_pages`
def test_the_policy_names_covey_s_own_style_and_script(page: Path, hostile_pages: dict[str, Path]) -> None:
    for file in (page, *hostile_pages.values()):
        found = Page(file.read_text())
        rules = dict(rule.split(" ", 1) for rule in found.policy.split("; "))
        assert rules == {
            "default-src": "'none'",
            "img-src": "data:",
            "style-src": sha256(found.text("style")),
            "script-src": sha256(found.text("script")),
            "base-uri": "'none'",
            "form-action": "'none'",
        }


@pytest.mark.parametrize("payload", PAYLOADS)
def test_markdown_has_no_tag_link_or_table_of_others(payload: str) -> None:
    line = escape(payload)
    assert "\n" not in line
    assert not re.search(r"[<>]", line)
    assert not re.search(r"(?<!\\)[`*_|\[\]#$]", line)


def test_markdown_shows_texts_as_they_are() -> None:
    # an independent reader of Markdown finds the text again, and nothing else
    markdown_it = pytest.importorskip("markdown_it", reason="skipped: markdown-it-py is not installed")
    reader = markdown_it.MarkdownIt("commonmark").enable("table")
    for payload in (*PAYLOADS, "- a", "1. a", "---", "+ b", "a\\", "**b** ~c~ &lt; https://x.org www.x.org"):
        plain = " ".join(payload.replace("\x00", "\ufffd").split())
        (paragraph,) = [token for token in reader.parse(escape(payload)) if token.type == "inline"]
        assert all(child.type == "text" or child.type == "text_special" for child in paragraph.children or [])
        assert "".join(child.content for child in paragraph.children or []) == plain
    table = reader.parse(f"| a | b |\n| --- | --- |\n| {escape(HOSTILE)} | c |")
    assert [token.type for token in table].count("td_open") == 2


@pytest.mark.slow  # see `hostile_pages`
def test_markdown_twin_of_a_hostile_run(hostile_pages: dict[str, Path]) -> None:
    for where, file in hostile_pages.items():
        text = (file.parent / "report.md").read_text()
        outside_code = re.sub(r"(`{3,})json\n.*?\n\1", "", text, flags=re.S)
        assert "<" not in outside_code, where
        for line in outside_code.splitlines():
            if line.startswith("|"):
                cells = re.findall(r"(?<!\\)\|", line)
                assert len(cells) > 2, where
        for target in re.findall(r"(?<!\\)\]\(([^)]+)\)", outside_code):
            assert (file.parent / target).is_file(), where


def png(size: tuple[int, int] = (5, 3), mode: str = "RGB", **options: object) -> str:
    file = io.BytesIO()
    Image.new(mode, size, 77 if mode == "L" else (200, 10, 30)).save(file, "PNG", **options)
    return PREFIX + base64.b64encode(file.getvalue()).decode()


def pixels(url: str) -> tuple[str, tuple[int, int], bytes]:
    image = Image.open(io.BytesIO(base64.b64decode(url.removeprefix(PREFIX))))
    return image.mode, image.size, image.tobytes()


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_a_picture_of_covey_keeps_its_pixels(mode: str) -> None:
    found = checked_picture(png(mode=mode))
    assert found is not None
    assert pixels(found) == pixels(png(mode=mode))


def test_a_picture_loses_what_is_not_its_pixels() -> None:
    words = PngImagePlugin.PngInfo()
    words.add_text("Comment", "<script>")
    stored = png(pnginfo=words, icc_profile=b"a profile")
    found = checked_picture(stored)
    assert found is not None
    data = base64.b64decode(found.removeprefix(PREFIX))
    assert b"<script>" in base64.b64decode(stored.removeprefix(PREFIX))
    assert b"<script>" not in data
    assert b"iCCP" not in data


def jpeg() -> str:
    file = io.BytesIO()
    Image.new("RGB", (4, 4)).save(file, "JPEG")
    return PREFIX + base64.b64encode(file.getvalue()).decode()


@pytest.mark.parametrize(
    "stored",
    [
        None,
        7,
        "",
        "x.png",
        "https://example.org/x.png",
        "javascript:alert(1)",
        "data:image/svg+xml;base64,PHN2Zy8+",
        "data:text/html;base64,PHNjcmlwdD4=",
        PREFIX,
        PREFIX + "not base64!",
        PREFIX + "aGVsbG8=",
        png() + '" onerror="alert(1)',
        png() + "\n",
        png()[:-60],
        png().replace(PREFIX, PREFIX.upper()),
        png((600, 2)),
        png((2, 60_000)),
        jpeg(),
    ],
)
def test_what_is_no_small_png_is_no_picture(stored: object) -> None:
    assert checked_picture(stored) is None


def test_pictures_that_are_left_out_are_told(make_runs: Callable, tmp_path: Path) -> None:
    run = make_runs((0, 1, 2))[0]
    first, second, third, fourth, _, *rest = run.evaluation.examples
    examples = (
        first | {"picture": '"><script>alert(1)</script>'},
        second | {"confidence": "very"},
        third | {"index": float("inf")},
        fourth | {"kind": ["most certain"]},
        "no example at all",
        *rest,
    )
    page = write([replace(run, evaluation=replace(run.evaluation, examples=examples))], tmp_path)
    assert len(Page(page.read_text()).of("img")) == len(run.evaluation.examples) - 5
    for file in (page, tmp_path / "report.md"):
        assert "Single: 5 stored example(s) left out" in file.read_text()


def test_drawings_keep_what_matplotlib_draws_and_nothing_else() -> None:
    file = """<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="9pt">
    <defs><style>* {}</style><script>alert(1)</script><path id="m" d="M 0 0"/></defs>
    <a xlink:href="javascript:alert(1)"><text>gone</text></a>
    <foreignObject><p>gone</p></foreignObject>
    <use xlink:href="#m" id="unused" style="fill: #1d2026"/><image xlink:href="https://example.org/x.png"/>
    <g onload="alert(1)" style="fill: red} body { display: none" clip-path="url(#m)"><text>kept &lt;b&gt;</text></g>
    </svg>"""
    drawings = Drawings()
    given = Figure("a", "a", 'in "words" <b>', file, None)
    first, second = drawings.inline(given), drawings.inline(given)
    found = Page(first)
    assert [tag for tag, _ in found.elements] == ["svg", "defs", "path", "use", "image", "g", "text"]
    assert found.of("svg")[0] == {"role": "img", "aria-label": 'in "words" <b>'}
    assert found.of("use")[0] == {"href": "#d0-m", "class": "s0"}
    assert found.of("image")[0] == {}
    assert found.of("g")[0] == {"clip-path": "url(#d0-m)"}
    assert found.text("text") == "kept <b>"
    assert drawings.css() == ".s0 { fill: var(--ink) }"
    assert 'id="d1-m"' in second


@pytest.mark.slow
def test_names_that_matplotlib_would_take_for_commands(make_runs: Callable, tmp_path: Path) -> None:
    names = ["$x_{$", "_hidden", "a" * 300, "模型 \ud800", "A", "a"]
    runs = [replace(make_runs((0, 1, 2))[0], method=name) for name in names]
    page = write(runs, tmp_path)
    parsed = Page(page.read_text())
    legend = parsed.text("text")
    assert "$x_{$" in legend
    assert "_hidden" in legend
    files = [file.stem for file in (tmp_path / "figures").iterdir()]
    assert len(files) == len(parsed.of("svg")), "every figure has a file of its own"
    assert max(len(name) for name in files) < 120
    assert label("one two") == "one two"
    assert slug("x" * 300) != slug("x" * 301)


def test_a_link_in_the_place_of_a_page_is_replaced_and_not_followed(
    make_runs: Callable, tmp_path: Path
) -> None:
    mine, folder = tmp_path / "mine", tmp_path / "run"
    mine.write_text("mine")
    folder.mkdir()
    pages = [folder / name for name in ("report.html", "report.md")]
    for page in pages:
        page.symlink_to(mine)
    write(make_runs((0, 1, 2))[:1], folder)
    assert mine.read_text() == "mine"
    assert not any(page.is_symlink() for page in pages)


def test_a_folder_of_figures_that_is_a_link_is_refused(make_runs: Callable, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "figures").symlink_to(tmp_path / "mine")
    with pytest.raises(StoreError, match="figures is a link to another place"):
        write(make_runs((0, 1, 2))[:1], tmp_path / "run")
    assert not list((tmp_path / "mine").iterdir())
