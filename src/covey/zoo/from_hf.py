"""Networks of Hugging Face's transformers that classify texts or images, for the data at hand.

Weights are read from safetensors files of a local folder or of the hub's cache; nothing is downloaded, and no code of a
repository is run.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from covey.errors import OptionError, StoreError
from covey.extras import load
from covey.schema import Many, Maybe, Number, Record, Truth, read_json

_log = logging.getLogger("covey")
_LOCAL = {"local_files_only": True, "trust_remote_code": False}
PREPROCESSOR = "preprocessor_config.json"
_PREPROCESSOR = Record(
    optional={
        "do_rescale": Truth(),
        "rescale_factor": Number(1e-6, 1e6),
        "do_normalize": Truth(),
        "image_mean": Maybe(Many(Number(-1e6, 1e6), least=1, most=64)),
        "image_std": Maybe(Many(Number(1e-6, 1e6), least=1, most=64)),
    }
)
_ATTENTION = (None, "eager", "sdpa")  # others are fetched from the hub, as code
_LEFT_OUT = (
    "auto_map",
    "quantization_config",
    "dtype",
    "torch_dtype",
    "_name_or_path",
    "transformers_version",
)


class TextClassifier(nn.Module):
    """A transformer that takes tokens (B, T) and answers with logits (B, C); padding is not attended to."""

    def __init__(self, model: nn.Module, pad: int) -> None:
        super().__init__()
        self.model = model
        self.pad = pad

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T) to logits (B, C)."""
        first = torch.arange(tokens.shape[1], device=tokens.device) == 0
        there = (tokens != self.pad) | first  # an empty text still has one token to attend to
        return self.model(input_ids=tokens, attention_mask=there.long()).logits


class ImageClassifier(nn.Module):
    """A transformer that takes images (B, C, H, W) and answers with logits (B, C)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) to logits (B, C)."""
        return self.model(pixel_values=images).logits


def build(
    name: str,
    *,
    shape: Sequence[int],
    outputs: int,
    options: Mapping[str, Any],
    tokens: Mapping[str, Any] | None,
) -> nn.Module:
    """A network of transformers with so many outputs: for texts if there are tokens, for images otherwise.

    Args:
        name: a folder with config.json and model.safetensors, or a name of the hub that is in its cache.
        shape: of one sample: (tokens,) or (channels, height, width).
        outputs: numbers that the network answers with.
        options: settings of the model's configuration, such as attention_dropout=0.1.
        tokens: "pad" and "vocabulary" of the tokenizer that made the samples.
    """
    if tokens is None and len(shape) != 3:
        raise OptionError(
            f"hf:{name} classifies texts or images, and the data have rows of {shape[0]} numbers. For texts in a "
            "table, say which column they are in: --text COLUMN."
        )
    transformers = load("transformers")
    config = _config(transformers, name, options, outputs)
    kind = "image" if tokens is None else "text"
    if tokens is not None:
        config.pad_token_id = tokens["pad"]
        _check_tokens(config, name, tokens, shape[0])
    else:
        _check_channels(config, name, shape[0])
    model = _with_weights(_auto(transformers, kind, config, name), name, config)
    return _wrapped(model, kind, name, config)


def normalisation(name: str) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Mean and deviation of intensities from 0 to 1 that an image network was trained with; None if it does not say.

    Args:
        name: as in `build`.
    """
    path = _preprocessor(name)
    if path is None:
        return None
    found = read_json(path, _PREPROCESSOR)
    factor = found.get("rescale_factor", 1 / 255) if found.get("do_rescale", True) else 1.0
    if not found.get("do_normalize", True):
        mean, std = (0.0,), (1.0,)
    elif found.get("image_mean") and found.get("image_std"):
        mean, std = found["image_mean"], found["image_std"]
    else:
        return None
    # The file's numbers are of pixels times the factor, which are intensities where it is 1 / 255.
    scale = 255 * factor
    return tuple(value / scale for value in mean), tuple(value / scale for value in std)


def _preprocessor(name: str) -> Path | None:
    """The file that says how images are prepared, in a folder or in the hub's cache."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        path = folder / PREPROCESSOR
        return path if path.exists() else None
    find = load("transformers.utils").cached_file
    try:
        found = find(name, PREPROCESSOR, local_files_only=True)
    except (OSError, ValueError):
        return None
    return None if found is None else Path(found)


def rebuild(name: str, arguments: Mapping[str, Any]) -> nn.Module:
    """The architecture that `build` made, from its stored arguments; reads no file."""
    transformers = load("transformers")
    try:
        found = json.loads(arguments["config"])
        model_type = found.pop("model_type")
        if arguments["kind"] not in ("text", "image") or model_type not in transformers.CONFIG_MAPPING:
            raise ValueError(f"transformers has no {arguments['kind']} network of type {model_type!r}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise OptionError(f"hf:{name} is stored without a configuration that can be read: {error}") from error
    _check_attention(found, name)
    kept = {key: value for key, value in found.items() if key not in _LEFT_OUT}
    config = transformers.CONFIG_MAPPING[model_type](**kept)
    model = _auto(transformers, arguments["kind"], config, name).from_config(config)
    return _wrapped(model, arguments["kind"], name, config)


def _config(transformers: Any, name: str, options: Mapping[str, Any], outputs: int) -> Any:
    place = str(Path(name).expanduser())
    try:
        config, unused = transformers.AutoConfig.from_pretrained(
            place, return_unused_kwargs=True, num_labels=outputs, **options, **_LOCAL
        )
    except (OSError, ValueError, KeyError) as error:
        raise StoreError(
            f"hf:{name} cannot be read: {_first_line(error)} Give a folder with config.json and model.safetensors, or "
            "a name whose files are in the hub's cache (`hf download NAME` fetches them)."
        ) from error
    unknown = [key for key in unused if key not in _LOCAL]
    if unknown:
        raise OptionError(f"the configuration of hf:{name} has no setting {unknown[0]!r}.")
    _check_attention(config.to_dict(), name)
    return config


def _auto(transformers: Any, kind: str, config: Any, name: str) -> Any:
    """The class of transformers that makes the network, if there is one for this kind of data."""
    known = {
        "text": transformers.AutoModelForSequenceClassification,
        "image": transformers.AutoModelForImageClassification,
    }
    auto = known[kind]
    if type(config) not in auto._model_mapping:
        raise OptionError(
            f"hf:{name} is a network of type {config.model_type!r}, which transformers has no {kind} classifier of."
        )
    return auto


def _with_weights(auto: Any, name: str, config: Any) -> nn.Module:
    """The network with the weights that are stored with its configuration, if there are some."""
    folder = Path(name).expanduser()
    if folder.is_dir() and not list(folder.glob("*.safetensors")):
        others = [
            path.name
            for path in folder.iterdir()
            if path.suffix in (".bin", ".pt", ".pth", ".h5", ".msgpack")
        ]
        if others:
            raise StoreError(
                f"hf:{name} holds {others[0]} and no .safetensors file; covey reads only those. Store the network anew "
                "with model.save_pretrained(folder)."
            )
        _log.warning("hf:%s holds no weights: the network starts from random ones", name)
        return auto.from_config(config)
    try:
        with _quietly():
            model, found = auto.from_pretrained(
                str(folder) if folder.is_dir() else name,
                config=config,
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # the head's, for another number of classes
                output_loading_info=True,
                dtype=torch.float32,
                **_LOCAL,
            )
    except (OSError, ValueError, RuntimeError) as error:
        raise StoreError(f"the weights of hf:{name} cannot be read: {_first_line(error)}") from error
    _say_what_is_new(model, found, name)
    return model


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without transformers' own report and progress bar: covey says in a line what is new."""
    talk = load("transformers.utils.logging")
    verbosity, bars = talk.get_verbosity(), talk.is_progress_bar_enabled()
    talk.set_verbosity_error()
    talk.disable_progress_bar()
    try:
        yield
    finally:
        talk.set_verbosity(verbosity)
        if bars:
            talk.enable_progress_bar()


def _say_what_is_new(model: nn.Module, found: Mapping[str, Any], name: str) -> None:
    """Say which tensors did not come from the file, and refuse a file that has nothing for this network."""
    fresh = sorted(
        {
            *found["missing_keys"],
            *(key if isinstance(key, str) else key[0] for key in found["mismatched_keys"]),
        }
    )
    if len(fresh) >= len(model.state_dict()):
        raise StoreError(
            f"the weights of hf:{name} are those of another network: none of its tensors is there."
        )
    if fresh:
        _log.info("hf:%s: these tensors are not in its weights and start anew: %s", name, ", ".join(fresh))


def _wrapped(model: nn.Module, kind: str, name: str, config: Any) -> nn.Module:
    network = TextClassifier(model, config.pad_token_id) if kind == "text" else ImageClassifier(model)
    stored = {key: value for key, value in config.to_diff_dict().items() if key not in _LEFT_OUT}
    # What differs from the defaults may lack these three.
    stored |= {"model_type": config.model_type, "num_labels": config.num_labels}
    if kind == "text":
        stored["pad_token_id"] = config.pad_token_id
    arguments = {"kind": kind, "config": json.dumps(stored)}
    object.__setattr__(network, "covey_zoo", {"name": f"hf:{name}", "arguments": arguments})
    return network.train()


def _check_tokens(config: Any, name: str, tokens: Mapping[str, Any], length: int) -> None:
    """Refuse a tokenizer that makes tokens which the network has no embedding for."""
    known = getattr(config, "vocab_size", None)
    if known is not None and tokens["vocabulary"] > known:
        raise OptionError(
            f"the tokenizer has {tokens['vocabulary']:,} tokens and hf:{name} knows {known:,}: they do not belong "
            "together."
        )
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and length > longest:
        raise OptionError(
            f"texts have up to {length} tokens and hf:{name} takes {longest}: give --length {longest} or less."
        )


def _check_channels(config: Any, name: str, channels: int) -> None:
    """Refuse images of another number of channels than the network was made for."""
    known = getattr(config, "num_channels", None)
    if known is not None and known != channels:
        raise OptionError(
            f"hf:{name} takes images of {known} channels and the data's have {channels}: store them as "
            f"{'colour' if known == 3 else 'grey'} images, or take another network."
        )


def _check_attention(config: Mapping[str, Any], name: str) -> None:
    for key, value in _leaves(config):
        if "attn_implementation" in key and value not in _ATTENTION:
            raise OptionError(
                f"hf:{name} asks for the attention {value!r}, which would be fetched as code; covey runs 'eager' and "
                "'sdpa'."
            )


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """All values of a nested dict with their own keys."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, str(name))
    else:
        yield key, value


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
