"""Ways to damage files, drawn from a seeded generator: bytes, JSON, tensor headers, what kind of file it is."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

DEEP: Any = []
for _ in range(60):
    DEEP = [DEEP]

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 255, 65537, 10**6, 10**9, 10**12, 2**63, 10**30, 0.0, 0.5, -0.5, 1e30, 1e308,
    float("nan"), float("inf"), "", "x", "..", ".", "/", "a/b", "/dev/zero", "nowhere", "loop", "batched", "all",
    "float16", "a\0b", "\ud800", "é" * 50, "x" * 5000, "(", "[0-9]{99999}", [], [[]], [0], [1, 2], [None], ["x"],
    [10**9, 10**9], {}, {"x": 1}, {"": None}, DEEP,
)  # fmt: skip
DIGITS = '"five thousand digits"'


def places(value: Any, path: tuple = ()) -> list[tuple]:
    """Every place in a JSON value but its root."""
    found = []
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in steps:
        found.append((*path, step))
        found += places(inner, (*path, step))
    return found


def damage_json(value: Any, draw: Random) -> Any:
    """A JSON value with something wrong in it."""
    value = json.loads(json.dumps(value))
    known = places(value)
    if not known or draw.random() < 0.02:
        return draw.choice(VALUES)
    path = draw.choice(known) if draw.random() < 0.6 else _shallow(known, draw)
    parent = value
    for step in path[:-1]:
        parent = parent[step]
    draw.choice(_JSON)(parent, path[-1], draw)
    return value


def _shallow(known: list[tuple], draw: Random) -> tuple:
    """A place that is not deep: most places are entries of long lists."""
    depth = draw.choice(sorted({len(path) for path in known})[:3])
    return draw.choice([path for path in known if len(path) == depth])


def _replace(parent: Any, step: Any, draw: Random) -> None:
    parent[step] = draw.choice(VALUES)


def _drop(parent: Any, step: Any, draw: Random) -> None:
    del parent[step]


def _rename(parent: Any, step: Any, draw: Random) -> None:
    if isinstance(parent, dict):
        parent[draw.choice(("", "x", step + "x", step[:-1], step.upper()))] = parent.pop(step)
    else:
        parent.append(parent[step])


def _scale(parent: Any, step: Any, draw: Random) -> None:
    here = parent[step]
    if isinstance(here, bool) or not isinstance(here, int | float):
        parent[step] = [here]
    else:
        parent[step] = draw.choice(
            (here + 1, here - 1, -here, here * 2, here * 10**9, float(here), str(here))
        )


def _exchange(parent: Any, step: Any, draw: Random) -> None:
    other = draw.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
    parent[step], parent[other] = parent[other], parent[step]


def _repeat(parent: Any, step: Any, draw: Random) -> None:
    here = parent[step]
    parent[step] = here * 3 if isinstance(here, list | str) else [here, here]


def _digits(parent: Any, step: Any, draw: Random) -> None:
    parent[step] = json.loads(DIGITS)


_JSON: tuple[Callable[[Any, Any, Random], None], ...] = (
    _replace, _replace, _replace, _drop, _drop, _rename, _scale, _scale, _exchange, _repeat, _digits,
)  # fmt: skip


def written(value: Any) -> str:
    """JSON text, with a number of five thousand digits where one was asked for."""
    return json.dumps(value).replace(DIGITS, "9" * 5000)


def damage_bytes(content: bytes, draw: Random) -> bytes:
    """Bytes with something wrong in them."""
    return draw.choice(_BYTES)(content, draw)


def _flip(content: bytes, draw: Random) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 3, 30))):
        if changed:
            # beginnings say what the rest is, so half of the flips are there
            reach = min(len(changed), 200) if draw.random() < 0.5 else len(changed)
            changed[draw.randrange(reach)] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _cut(content: bytes, draw: Random) -> bytes:
    return content[: draw.randrange(len(content) + 1)]


def _blank(content: bytes, draw: Random) -> bytes:
    start = draw.randrange(len(content) + 1)
    length = draw.choice((1, 4, 8, 100))
    return content[:start] + bytes([draw.choice((0, 255, 32))]) * length + content[start + length :]


def _insert(content: bytes, draw: Random) -> bytes:
    start = draw.randrange(len(content) + 1)
    return content[:start] + draw.randbytes(draw.choice((1, 8, 300))) + content[start:]


def _move(content: bytes, draw: Random) -> bytes:
    start, end = sorted(draw.randrange(len(content) + 1) for _ in range(2))
    return content[:start] + content[end:] + content[start:end]


def _other(content: bytes, draw: Random) -> bytes:
    return draw.choice(
        (b"", b"{}", b"[", b"\x80\x04.", draw.randbytes(500), b"[" * 100_000, b"\xff\xfe" + content)
    )


_BYTES: tuple[Callable[[bytes, Random], bytes], ...] = (
    _flip,
    _flip,
    _flip,
    _cut,
    _blank,
    _insert,
    _move,
    _other,
)


def damage_kind(path: Path, draw: Random, elsewhere: Path) -> str:
    """Put something else in the place of a file: nothing, a pipe, a device, a folder, a link, a hole."""
    kind = draw.choice(("nothing", "pipe", "zero", "folder", "link", "circle", "hole", "shut"))
    if kind == "shut":
        path.chmod(0)
        return kind
    content = path.read_bytes()
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "link":
        elsewhere.write_bytes(content)
        path.symlink_to(elsewhere)
    elif kind == "circle":
        path.symlink_to(path.name)
    elif kind == "hole":
        with path.open("wb") as file:
            file.write(content)
            file.truncate(1 << 40)
    return kind


def damage_file(path: Path, draw: Random, elsewhere: Path) -> str:
    """Damage a file in one of all ways; JSON files mostly by what they say."""
    if draw.random() < 0.06:
        return damage_kind(path, draw, elsewhere)
    content = path.read_bytes()
    if path.suffix == ".json" and draw.random() < 0.85:
        value = json.loads(content)
        for _ in range(draw.choice((1, 1, 1, 2, 4))):
            value = damage_json(value, draw)
        path.write_text(written(value), encoding="utf-8", errors="surrogatepass")
        return "json"
    path.write_bytes(damage_bytes(content, draw))
    return "bytes"


def parts_of(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and tensors of a safetensors file."""
    (size,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def joined(header: Any, rest: bytes) -> bytes:
    """A safetensors file of a header and tensors."""
    text = written(header).encode("utf-8", errors="surrogatepass")
    return struct.pack("<Q", len(text)) + text + rest


def renamed(folder: Path, prefix: str, content: bytes) -> Path:
    """Write a tensor file under the name that its checksum gives, so that only what it says is wrong."""
    path = folder / f"{prefix}-{hashlib.sha256(content).hexdigest()[:16]}.safetensors"
    path.write_bytes(content)
    return path


def copied(source: Path, place: Path) -> Path:
    """A fresh copy of a folder."""
    removed(place)
    shutil.copytree(source, place)
    return place


def removed(place: Path) -> None:
    """Remove a folder, those of its files that nobody may read too."""
    if place.exists():
        shutil.rmtree(place)
