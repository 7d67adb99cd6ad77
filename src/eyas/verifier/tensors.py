"""Single tensors of a checkpoint by exact key: found, checked, and made plain floats by a declared rule or not at all."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eyas.errors import EyasError, checking
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.schema import Dequantizer

if TYPE_CHECKING:
    from torch import Tensor

PLAIN = ("F32", "BF16", "F16")
FP8 = ("F8_E4M3", "F8_E5M2")
SCALES = ("_scale", "_scale_inv")


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """Where a tensor stands, and how it becomes plain floats of `shape`."""

    key: str
    """Without the suffix that a packed one has."""
    shape: tuple[int, ...]
    dequantize: Dequantizer = Dequantizer.none
    scale_key: str = ""
    block: tuple[int, int] | None = None
    """Rows and columns that share a scale, where the config states it."""


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """The declared rule, and the checkpoint's own quantisation block ({} where it has none)."""

    dequantize: Dequantizer
    block: dict[str, Any]

    @property
    def weight_block(self) -> tuple[int, int] | None:
        size = self.block.get("weight_block_size")
        return None if size is None else (size[0], size[1])


def locate_tensor(
    checkpoint: Checkpoint,
    names: Sequence[str],
    shape: tuple[int, ...],
    quantization: Quantization,
    where: str,
    *,
    more_rows: bool = False,
) -> StoredTensor:
    """The one candidate that the checkpoint holds, as plain floats of `shape` or with a declared dequantiser.

    With `more_rows` it may have more rows than `shape`, which are not read.

    Raises:
        EyasError: none or several candidates, another shape or type, a quantised tensor without a rule.
    """
    present = [name for name in names if name in checkpoint.file_of]
    packed = [name for name in names if f"{name}_packed" in checkpoint.file_of]
    if packed and not present:
        with checking("p04_plain_floats"):
            return _packed(checkpoint, packed[0], shape, quantization.dequantize, where)
    if len(present) > 1:
        raise EyasError(f"{where}: the checkpoint holds {' and '.join(present)}: name the one that is meant")
    if not present:
        stems = tuple(name.rpartition(".")[0] + "." for name in names)
        quantised = [key for key in checkpoint.file_of if key.startswith(stems) and not key.endswith(".bias")]
        with checking("p04_plain_floats" if quantised else "p02_keys"):
            raise EyasError(
                f"{where}: none of {list(names)} is in the checkpoint, {_instead(checkpoint, names, quantised)}"
            )
    key = present[0]
    header = checkpoint.header(key)
    if header.dtype not in (*PLAIN, *FP8):  # packed: its shape would only confuse
        with checking("p04_plain_floats"):
            return _as_floats(checkpoint, key, shape, quantization, where)
    if header.shape != shape and not (more_rows and header.shape[0] > shape[0] and header.shape[1:] == shape[1:]):
        raise EyasError(
            f"{where}: {key} has shape {list(header.shape)}, {checkpoint.config_file} says {list(shape)}: "
            "another tensor, or verifier.config points at another number"
        )
    with checking("p04_plain_floats"):
        return _as_floats(checkpoint, key, shape, quantization, where)


def read_tensor(checkpoint: Checkpoint, stored: StoredTensor) -> "Tensor":
    """The tensor as plain floats, in the type it is stored in (float32 where it had to be dequantised)."""
    if stored.dequantize is Dequantizer.none:
        return checkpoint.tensor(stored.key)[: stored.shape[0]]
    from eyas.verifier.dequantize import fp8, packed_int4

    scale = checkpoint.tensor(stored.scale_key)
    if stored.dequantize is Dequantizer.fp8:
        return fp8(checkpoint.tensor(stored.key), scale, stored.block)[: stored.shape[0]]
    return packed_int4(checkpoint.tensor(f"{stored.key}_packed"), scale, stored.shape)


def _as_floats(
    checkpoint: Checkpoint, key: str, shape: tuple[int, ...], quantization: Quantization, where: str
) -> StoredTensor:
    header = checkpoint.header(key)
    scales = [key + suffix for suffix in SCALES if key + suffix in checkpoint.file_of]
    if header.dtype in PLAIN and not scales:
        return StoredTensor(key=key, shape=shape)
    if header.dtype in FP8 and scales and quantization.dequantize is Dequantizer.fp8:
        block, scale, (rows, columns) = (
            quantization.weight_block,
            checkpoint.header(scales[0]).shape,
            (*header.shape, 1)[:2],
        )
        if block is not None and scale == (-(-rows // block[0]), -(-columns // block[1])):
            return StoredTensor(key=key, shape=shape, dequantize=Dequantizer.fp8, scale_key=scales[0], block=block)
        if scale not in ((), (1,), (1, 1), (rows,), (rows, 1)):
            blocks = (
                f"one for each block of {list(block)} (weight_block_size)"
                if block is not None
                else f"blocks ({checkpoint.config_file} states no weight_block_size: set verifier.quantization.path to its "
                "quantisation block)"
            )
            raise EyasError(
                f"{where}: {scales[0]} has shape {list(scale)} beside {key} {list(header.shape)}, expected one scale, "
                f"one for each row, or {blocks}"
            )
        return StoredTensor(key=key, shape=shape, dequantize=Dequantizer.fp8, scale_key=scales[0])
    found = f"{key} is stored as {header.dtype} with {scales[0] if scales else 'no scale beside it'}"
    if header.dtype in FP8 and scales:
        raise EyasError(f"{where}: {found}; set verifier.quantization.dequantize: fp8")
    raise EyasError(
        f"{where}: {found}, expected a plain float ({', '.join(PLAIN)}): no rule makes it one; "
        "take a checkpoint that leaves it unquantised"
    )


def _packed(
    checkpoint: Checkpoint, key: str, shape: tuple[int, ...], dequantize: Dequantizer, where: str
) -> StoredTensor:
    """compressed-tensors' pack-quantized layout: eight int4 in an int32, symmetric, one scale per row and group."""
    header = checkpoint.header(f"{key}_packed")
    if dequantize is not Dequantizer.packed_int4:
        raise EyasError(
            f"{where}: {key} is packed ({key}_packed, {header.dtype} {list(header.shape)}), not a plain float: "
            "take a checkpoint that leaves it unquantised, or set verifier.quantization.dequantize: packed_int4"
        )
    asymmetric = [key + suffix for suffix in ("_zero_point", "_g_idx") if key + suffix in checkpoint.file_of]
    scales = checkpoint.header(f"{key}_scale").shape if f"{key}_scale" in checkpoint.file_of else (0, 0)
    whole_groups = len(scales) == 2 and scales[0] == shape[0] and scales[1] > 0 and shape[1] % scales[1] == 0
    if header.shape != (shape[0], -(-shape[1] // 8)) or not whole_groups or asymmetric:
        raise EyasError(
            f"{where}: {key}_packed is {header.dtype} {list(header.shape)} with scales {list(scales)} "
            f"{' and '.join(asymmetric)}: packed_int4 reads symmetric int4 of {list(shape)}, that is "
            f"[{shape[0]}, {-(-shape[1] // 8)}] and {key}_scale [{shape[0]}, groups]"
        )
    return StoredTensor(key=key, shape=shape, dequantize=dequantize, scale_key=f"{key}_scale")


def _instead(checkpoint: Checkpoint, names: Sequence[str], quantised: list[str]) -> str:
    """What is there where no candidate is: a quantised layout, or similar names (of no layer) that a person can pick."""
    if quantised:
        return (
            f"but {', '.join(quantised[:3])}: it is quantised in a layout that nothing here reads; "
            "take a checkpoint that leaves it unquantised"
        )
    words = {part for name in names for part in name.split(".")[-2:-1]}
    near = [
        key for key in checkpoint.file_of if any(word in key for word in words) and not any(c.isdigit() for c in key)
    ]
    return f"where similar keys are: {', '.join(near[:4]) or 'none'}"
