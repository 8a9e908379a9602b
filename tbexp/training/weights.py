"""A folder of weights as it lies on disk: what its safetensors files hold by their headers. Files only, no torch.

A safetensors file begins with the length of its header (8 bytes, little endian) and the header, a JSON object of
tensors with type, shape and place (https://github.com/huggingface/safetensors). Decided here: a Hugging Face folder is
whole when its configuration can be read, and its files are as long as their headers say and hold what the index names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

INDEX = "model.safetensors.index.json"
LONGEST_HEADER = 100_000_000  # the format's own limit


def header(file: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and shape of each tensor of a file. ValueError: it is not whole."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 0 < length <= min(LONGEST_HEADER, size - 8):
            raise ValueError(f"{file.name} is no safetensors file, or its header is cut")
        try:
            tensors: dict[str, Any] = json.loads(stream.read(length))
        except ValueError:
            raise ValueError(f"{file.name} has a header that cannot be read") from None
    tensors.pop("__metadata__", None)
    end = 8 + length + max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
    if size != end:
        raise ValueError(f"{file.name} has {size} of {end} bytes")
    return {name: (str(entry["dtype"]), tuple(entry["shape"])) for name, entry in tensors.items()}


def tensors(folder: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Those of all files. ValueError: a file is not whole, or there is none."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError("it has no safetensors files")
    return {name: entry for file in files for name, entry in header(file).items()}


def fault(folder: Path, base: Path | None = None) -> str:
    """Why this is no whole Hugging Face folder; "" when it is one.

    base: with the weights of this one, by name, type and shape.
    """
    try:
        held = tensors(folder)
        index = folder / INDEX
        if index.exists() and (lost := json.loads(index.read_text())["weight_map"].keys() - held.keys()):
            return f"{len(lost)} weights of its index are in no file, such as {min(lost)}"
        if "model_type" not in json.loads((folder / "config.json").read_text()):
            return "its config.json names no model_type"
        return "" if base is None else difference(held, tensors(base))
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{type(error).__name__}: {error}" if isinstance(error, OSError | KeyError | TypeError) else str(error)


def difference(held: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    for name in sorted(wanted.keys() | held.keys()):
        if held.get(name) != wanted.get(name):
            return (
                f"the weight {name} is {held.get(name, 'missing')} here and {wanted.get(name, 'missing')} in the base"
            )
    return ""


def sizes(folder: Path) -> dict[str, int]:
    """Bytes of the folder's files by name."""
    return {file.name: file.stat().st_size for file in sorted(folder.iterdir()) if file.is_file()}
