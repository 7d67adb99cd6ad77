"""A checkpoint directory: its config, which tensors it holds, and single tensors, read lazily by exact key."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eyas.errors import EyasError

if TYPE_CHECKING:  # opening a checkpoint and reading its config needs no torch
    import torch


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
    """A directory with a config and safetensors weights: one file, or several with an index.

    Which tensors exist comes from the index alone; a file is opened only for a header or tensor that is asked for.
    """

    directory: Path
    config_file: str = "config.json"
    weights: str | None = None
    """A pattern of the files that hold the weights; None: what the index names, else every *.safetensors."""
    hub: str | None = None
    """`repository@commit` of a checkpoint that came from the hub."""
    fetch: Callable[[str], Path] | None = field(default=None, compare=False)
    """Gets a file that is not there yet (a hub id's); None: a local directory, which is complete or wrong."""

    def __post_init__(self) -> None:
        if not self.directory.is_dir():
            raise EyasError(f"the verifier's directory {self.directory} does not exist; set verifier.path")
        if (self.directory / "adapter_config.json").exists():
            raise EyasError(
                f"{self.directory} holds an adapter (adapter_config.json), not a whole model: merge it into its base model "
                "first, for instance with peft's merge_and_unload, and set verifier.path to the result"
            )

    @cached_property
    def config(self) -> dict[str, Any]:
        """The config file as it is."""
        file = self.directory / self.config_file
        try:
            config = json.loads(file.read_text())
        except FileNotFoundError:
            found = ", ".join(sorted(path.name for path in self.directory.iterdir())[:6]) or "it is empty"
            raise EyasError(
                f"{self.directory} holds no {self.config_file}, so it is no checkpoint (found: {found}); "
                "set verifier.path, or verifier.files.config"
            ) from None
        except ValueError as error:
            raise EyasError(f"{file} is not valid JSON: {error}") from None
        if not isinstance(config, dict):
            raise EyasError(f"{file} holds a {type(config).__name__}, expected a mapping")
        return config

    @cached_property
    def file_of(self) -> dict[str, str]:
        """The file of every tensor, by its exact key.

        Raises:
            EyasError: no weights, an index that names missing files, a broken index or header.
        """
        index = self.directory / "model.safetensors.index.json"
        if self.weights is None and index.exists():
            try:
                file_of: dict[str, str] = json.loads(index.read_text())["weight_map"]
                if not isinstance(file_of, dict):
                    raise TypeError
            except (ValueError, KeyError, TypeError):
                raise EyasError(f"{index} is no index: it has no weight_map; download it again") from None
            missing = [name for name in sorted(set(file_of.values())) if not (self.directory / name).exists()]
            if missing and self.fetch is None:
                raise EyasError(
                    f"{index} names files that are missing: {', '.join(missing[:3])} "
                    f"({len(missing)} of {len(set(file_of.values()))}); the download is incomplete"
                )
            return file_of
        return {key: name for name in self.files for key in self._headers_of(name)}

    @cached_property
    def files(self) -> list[str]:
        """The weight files, sorted."""
        if self.weights is None and (self.directory / "model.safetensors.index.json").exists():
            return sorted(set(self.file_of.values()))
        names = sorted(path.name for path in self.directory.glob(self.weights or "*.safetensors"))
        if self.fetch is not None and not names:
            names = [self.fetch(self.weights or "model.safetensors").name]
        if self.weights is None and len(names) > 1:  # a second complete layout beside ours is not ours
            names = [name for name in names if not name.startswith("consolidated")]
        if not names:
            raise EyasError(
                f"{self.directory} holds no {self.weights or '*.safetensors'} weights; "
                "set verifier.path to a complete checkpoint"
            )
        return names

    @cached_property
    def needs_its_own_code(self) -> bool:
        """It ships code, and transformers has none for its model type."""
        if not self.config.get("auto_map"):
            return False
        from transformers import CONFIG_MAPPING  # seconds, seldom needed

        return self.config.get("model_type") not in CONFIG_MAPPING

    @property
    def layout(self) -> str:
        """Which files are read, and which complete layout beside them is not."""
        hf = (self.directory / "config.json").exists() and any(self.directory.glob("model*.safetensors"))
        mistral = (self.directory / "params.json").exists() and any(self.directory.glob("consolidated*.safetensors"))
        read = f"{self.config_file} and {self.files[0]}{f' to {self.files[-1]}' if len(self.files) > 1 else ''}"
        if not (hf and mistral):
            return read
        other = "params.json" if self.config_file == "config.json" else "config.json"
        return f"{read}; the layout of {other} beside it is not read (verifier.files says which)"

    def header(self, key: str) -> TensorHeader:
        """Type and shape of a tensor; only its file's header is read."""
        name = self.file_of[key]
        headers = self._headers_of(name)
        if key not in headers:
            raise EyasError(
                f"{self.directory}: the index says that {key} is in {name}, but it is not; download it again"
            )
        return headers[key]

    def tensor(self, key: str) -> "torch.Tensor":
        """Read one tensor; nothing else is touched."""
        from safetensors import safe_open

        with safe_open(self._path(self.header(key).file), framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(key)
        return tensor

    @cached_property
    def identity(self) -> str:
        """A hash of the weights: config, every tensor's header, and slices of every tensor that is no expert's.

        An in-place change of one layer (a merged LoRA) is seen; 600 GB are not read. On the hub a commit says it all.
        """
        if self.hub is not None:
            return hashlib.sha256(self.hub.encode()).hexdigest()
        digest = hashlib.sha256(json.dumps(self.config, sort_keys=True).encode())
        for name in self.files:
            headers = self._headers_of(name)
            digest.update("".join(f"{key} {it.dtype} {it.shape}" for key, it in sorted(headers.items())).encode())
            with self._path(name).open("rb") as file:
                for key, header in sorted(headers.items()):
                    if "expert" in key:
                        continue
                    for part in range(4):
                        file.seek(header.start + (header.end - header.start) * part // 4)
                        digest.update(file.read(min(256, header.end - file.tell())))
        return digest.hexdigest()

    def fetch_all(self) -> None:
        """Get every file of weights, for a program that loads the whole model from the directory."""
        for name in self.files:
            self._path(name)

    def _path(self, name: str) -> Path:
        path = self.directory / name
        return path if path.exists() or self.fetch is None else self.fetch(name)

    def _headers_of(self, name: str) -> dict[str, TensorHeader]:
        if name not in self._headers:
            self._headers[name] = _headers(self._path(name))
        return self._headers[name]

    @cached_property
    def _headers(self) -> dict[str, dict[str, TensorHeader]]:
        return {}


def _headers(file: Path) -> dict[str, TensorHeader]:
    size = file.stat().st_size
    with file.open("rb") as stream:
        prefix = stream.read(8)
        length = int.from_bytes(prefix, "little")
        if len(prefix) < 8 or 8 + length > size:
            raise EyasError(f"{file} is truncated: its header wants {length} bytes of {size}; download it again")
        try:
            header = json.loads(stream.read(length))
        except ValueError:
            raise EyasError(f"{file} is no safetensors file: its header is not JSON; download it again") from None
    base = 8 + length
    try:
        tensors = {
            key: TensorHeader(
                file.name,
                entry["dtype"],
                tuple(entry["shape"]),
                base + entry["data_offsets"][0],
                base + entry["data_offsets"][1],
            )
            for key, entry in header.items()
            if key != "__metadata__"
        }
    except (AttributeError, KeyError, TypeError, IndexError):
        raise EyasError(f"{file} is no safetensors file: its header describes no tensors; download it again") from None
    if tensors and max(tensor.end for tensor in tensors.values()) > size:
        raise EyasError(
            f"{file} is truncated: its tensors end at {max(t.end for t in tensors.values())} of {size} bytes; download it again"
        )
    return tensors
