"""Capture, as its configuration group describes it. Torch-free."""

from dataclasses import dataclass
from enum import Enum

from omegaconf import MISSING

from eyas.errors import EyasError
from eyas.fields import Dtype, at_least


class CaptureEngine(Enum):
    """Where the verifier's hidden states come from: a program that runs it, or files that somebody has made."""

    transformers = "transformers"
    vllm = "vllm"
    files = "files"


class Keep(Enum):
    """Which states stay on the disk while training goes on beside their capture."""

    none = "none"  # none that has been trained on: the least disk, and each pass captures anew
    window = "window"  # as many as fit into window_tokens: those that are needed again first
    all = "all"  # every one; after the first pass nothing is captured any more


@dataclass(kw_only=True)
class CaptureConfig:
    """Who produces the verifier's hidden states, and how they are stored."""

    engine: CaptureEngine = MISSING
    path: str | None = MISSING
    """With engine files: the directory that holds them (docs/capture_files.md); they are read where they are."""
    dtype: Dtype = MISSING
    """The verifier computes, and the states are stored, in this type."""
    workers: int | None = MISSING
    """With engine transformers: processes that capture at the same time, each with the whole verifier; null: one per device."""
    device_map: str | None = MISSING
    """Where transformers puts the verifier's modules (its own `device_map`: auto, balanced, ...); null: whole on one device."""
    tokens_per_batch: int = MISSING
    """Tokens in one forward of the verifier, padding included."""
    tokens_per_shard: int = MISSING
    """Tokens in one file of the store; a killed capture resumes after the last whole file."""
    online: bool = MISSING
    """Training goes on beside the capture (else after it), with the same rows in the same order, hence the same result."""
    keep: Keep = MISSING
    """What an on-line capture leaves on the disk."""
    window_tokens: int = MISSING
    """Tokens whose states an on-line capture may have on the disk at a time, unless it keeps all; the held-out ones beside them."""

    def __post_init__(self) -> None:
        at_least("capture.tokens_per_batch", self.tokens_per_batch, 1)
        at_least("capture.tokens_per_shard", self.tokens_per_shard, 1)
        at_least("capture.window_tokens", self.window_tokens, 1)
        if (self.path is not None) != (self.engine is CaptureEngine.files):
            raise EyasError(
                f"capture.path={self.path} with capture.engine={self.engine.name}: capture=files needs capture.path=DIR, where the "
                "states are, and nothing else has one"
            )
        for key in ("workers", "device_map"):
            if (value := getattr(self, key)) is not None and self.engine is not CaptureEngine.transformers:
                raise EyasError(
                    f"capture.{key}={value} with capture.engine={self.engine.name}: it says how transformers captures; set "
                    f"capture=transformers, or capture.{key}=null"
                )
        if self.workers is not None:
            at_least("capture.workers", self.workers, 1)
        if self.device_map is not None and (self.workers or 1) > 1:
            raise EyasError(
                f"capture.device_map={self.device_map} with capture.workers={self.workers}: one worker has all devices then; "
                "set capture.workers=null, or capture.device_map=null"
            )
        if self.online and self.engine is not CaptureEngine.vllm:
            raise EyasError(
                f"capture.online=true with capture.engine={self.engine.name}: only a server captures beside a training; "
                "set capture=online, or capture.online=false"
            )
        if self.keep is not Keep.all and not self.online:
            raise EyasError(
                f"capture.keep={self.keep.name} with capture.online=false: a training that begins after the capture needs all "
                "states; set capture=online, or capture.keep=all"
            )
