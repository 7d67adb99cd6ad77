"""A checkpoint directory: its config, which tensors it holds, and single tensors, read lazily by exact key."""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eyas.errors import EyasError

if TYPE_CHECKING:  # opening a checkpoint and reading its config needs no torch
    import torch

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",  # its stop tokens end the supervised spans
)


@dataclass(frozen=True)
class TensorHeader:
    """Where a tensor stands, from a safetensors header."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class Checkpoint:
    """A local directory with config.json and safetensors weights (one file or several with an index)."""

    directory: Path

    def __post_init__(self) -> None:
        if not self.directory.is_dir():
            raise EyasError(f"the verifier's directory {self.directory} does not exist; set verifier.path")

    @cached_property
    def config(self) -> dict[str, Any]:
        """config.json as it is."""
        file = self.directory / "config.json"
        try:
            config = json.loads(file.read_text())
        except FileNotFoundError:
            raise EyasError(
                f"{self.directory} holds no config.json, so it is no checkpoint; set verifier.path"
            ) from None
        except ValueError as error:
            raise EyasError(f"{file} is not valid JSON: {error}") from None
        if not isinstance(config, dict):
            raise EyasError(f"{file} holds a {type(config).__name__}, expected a mapping")
        return config

    @cached_property
    def tensors(self) -> dict[str, TensorHeader]:
        """Every tensor by its exact key, from the headers alone.

        Raises:
            EyasError: no weights, an index that names missing files, a broken header.
        """
        index = self.directory / "model.safetensors.index.json"
        if index.exists():
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        else:
            names = sorted(path.name for path in self.directory.glob("*.safetensors"))
        missing = [name for name in names if not (self.directory / name).exists()]
        if missing:
            raise EyasError(
                f"{index} names files that are missing: {', '.join(missing[:3])}; the download is incomplete"
            )
        if not names:
            raise EyasError(
                f"{self.directory} holds no *.safetensors weights; set verifier.path to a complete checkpoint"
            )
        return {key: header for name in names for key, header in _headers(self.directory / name).items()}

    def tensor(self, key: str) -> "torch.Tensor":
        """Read one tensor; nothing else is touched."""
        from safetensors import safe_open

        with safe_open(self.directory / self.tensors[key].file, framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(key)
        return tensor

    @cached_property
    def identity(self) -> str:
        """A hash of the weights: config, every tensor's header, and slices of every tensor that is no expert's.

        An in-place change of one layer (a merged LoRA) is seen; 600 GB are not read.
        """
        digest = hashlib.sha256(json.dumps(self.config, sort_keys=True).encode())
        by_file: dict[str, list[tuple[str, TensorHeader]]] = {}
        for key, header in sorted(self.tensors.items()):
            digest.update(f"{key} {header.dtype} {header.shape}".encode())
            by_file.setdefault(header.file, []).append((key, header))
        for name, entries in sorted(by_file.items()):
            with (self.directory / name).open("rb") as file:
                for key, header in entries:
                    if "expert" in key:
                        continue
                    for part in range(4):
                        file.seek(header.start + (header.end - header.start) * part // 4)
                        digest.update(file.read(min(256, header.end - file.tell())))
        return digest.hexdigest()

    @cached_property
    def tokenizer_identity(self) -> str:
        """A hash of the tokenizer, its chat template and the stop tokens."""
        digest = hashlib.sha256()
        for name in TOKENIZER_FILES:
            file = self.directory / name
            if file.exists():
                digest.update(name.encode() + b"\0" + file.read_bytes())
        return digest.hexdigest()


def _headers(file: Path) -> dict[str, TensorHeader]:
    size = file.stat().st_size
    with file.open("rb") as stream:
        prefix = stream.read(8)
        length = int.from_bytes(prefix, "little")
        if len(prefix) < 8 or 8 + length > size:
            raise EyasError(f"{file} is truncated: its header wants {length} bytes of {size}; download it again")
        header = json.loads(stream.read(length))
    header.pop("__metadata__", None)
    base = 8 + length
    tensors = {
        key: TensorHeader(
            file.name,
            entry["dtype"],
            tuple(entry["shape"]),
            base + entry["data_offsets"][0],
            base + entry["data_offsets"][1],
        )
        for key, entry in header.items()
    }
    if tensors and max(tensor.end for tensor in tensors.values()) > size:
        raise EyasError(
            f"{file} is truncated: its tensors end at {max(t.end for t in tensors.values())} of {size} bytes; download it again"
        )
    return tensors
