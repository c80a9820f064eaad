"""Texts in a column of a table, cut into tokens by a tokenizer of Hugging Face."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from covey.errors import DataError, StoreError
from covey.extras import load

if TYPE_CHECKING:
    import pandas

KIND = "text"


def fit_text(column: pandas.Series, tokenizer: str, length: int) -> dict[str, Any]:
    """How the texts of a column become tokens; JSON-able.

    Args:
        column: the texts, of which the longest decides how many tokens a sample has.
        tokenizer: a folder, or a name whose files are in the hub's cache.
        length: most tokens of a sample; the rest of a text is cut off.
    """
    if length < 2:
        raise DataError(f"a text needs room for at least two tokens; got length={length}")
    known = read_tokenizer(tokenizer)
    numbers = _numbers(known, _texts(column), length)
    longest = max(map(len, numbers))
    return {
        "name": str(column.name),
        "kind": KIND,
        "tokenizer": tokenizer,
        "length": max(longest, 2),
        "pad": _pad(known, tokenizer),
        "vocabulary": len(known),
        "sha256": _digest(known),
    }


def encode_text(texts: Sequence[str], spec: Mapping[str, Any]) -> Tensor:
    """Texts as (N, T) int64, by what `fit_text` found out; shorter ones are padded, longer ones cut off."""
    known = read_tokenizer(spec["tokenizer"])
    if _digest(known) != spec["sha256"]:
        raise DataError(
            f"the tokenizer {spec['tokenizer']} is not the one that was trained with; its files were changed"
        )
    tokens = torch.full((len(texts), spec["length"]), spec["pad"], dtype=torch.int64)
    for row, numbers in enumerate(_numbers(known, texts, spec["length"])):
        tokens[row, : len(numbers)] = torch.tensor(numbers, dtype=torch.int64)
    return tokens


def encode_column(frame: pandas.DataFrame, spec: Mapping[str, Any]) -> Tensor:
    """The texts of a table as (N, T) int64."""
    return encode_text(_texts(frame[spec["name"]]), spec)


def text_column(frame: pandas.DataFrame, asked: str | None, where: str) -> str:
    """The column that holds the texts: the one that was asked for, or the only one there is."""
    if asked is not None:
        return asked
    if len(frame.columns) == 1:
        return str(frame.columns[0])
    names = ", ".join(map(repr, frame.columns[:12]))
    raise DataError(f"{where}: say which column holds the texts (--text COLUMN); there are {names}")


@lru_cache(4)
def read_tokenizer(name: str) -> Any:
    """A tokenizer from a local folder or the hub's cache; nothing is downloaded, and no code of it is run."""
    transformers = load("transformers")
    place = Path(name).expanduser()
    try:
        return transformers.AutoTokenizer.from_pretrained(
            str(place) if place.is_dir() else name, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # damaged files make tokenizers stumble in many ways
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise StoreError(
            f"there is no tokenizer that can be read in {name}: {reason} Give its folder, or a name whose files are in "
            "the hub's cache, with --tokenizer."
        ) from error


def _numbers(tokenizer: Any, texts: Sequence[str], length: int) -> list[list[int]]:
    return tokenizer(list(texts), truncation=True, max_length=length, padding=False)["input_ids"]


def _texts(column: pandas.Series) -> list[str]:
    there = column.notna()
    if not len(column):
        raise DataError(f"column {column.name!r} holds no texts")
    return [str(value) if known else "" for value, known in zip(column, there, strict=True)]


def _pad(tokenizer: Any, name: str) -> int:
    """The token that fills up short texts; where there is none, the one that ends a text."""
    for number in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if number is not None:
            return int(number)
    raise DataError(f"the tokenizer {name} has no padding token and no token that ends a text; add one to it")


def _digest(tokenizer: Any) -> str:
    """SHA-256 of all that decides which tokens a text becomes."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        whole = repr(sorted(tokenizer.get_vocab().items()))
    else:
        found = json.loads(backend.to_str())
        # The last call's, not the file's.
        whole = json.dumps(
            {key: value for key, value in found.items() if key not in ("truncation", "padding")}
        )
    return hashlib.sha256(whole.encode()).hexdigest()
