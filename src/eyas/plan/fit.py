"""Whether it fits, and what to change where it doesn't."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from eyas.capture.schema import CaptureEngine
from eyas.config import Config
from eyas.evaluation.schema import Engine
from eyas.fields import Dtype
from eyas.plan.step import StepMemory
from eyas.training.schema import Accelerator
from eyas.verifier.checkpoint import Checkpoint

GIGA = 10**9
CUDA_BYTES = 1_500_000_000
FRAGMENTS = 0.05
"""Assumed, since nothing here can measure it: what CUDA's context, NCCL and cuBLAS take, and the share that an allocator wastes."""
GPUS_OF_A_MACHINE = 8
"""More of them are on another machine."""
PYTHON_BYTES = 650_000_000
HELD_BACK = 0.08
"""Measured on Linux (docs/plan.md): a training process after its imports, and what malloc keeps of what was freed. Where most
tensors are of a few MB it keeps more, up to a third; MALLOC_MMAP_THRESHOLD_=1000000 in the environment lets it keep nothing."""

SERVER = "the server, at the same time"
PYTHON = "Python and its libraries"
CHECKPOINT = "a checkpoint, copied to be written"
MALLOC = "freed, and kept by malloc"
CUDA = "CUDA, NCCL, fragments (assumed)"


@dataclass(frozen=True)
class Device:
    """What a process has to itself."""

    name: str
    """One of them: `GPU`, or `process` on a CPU."""
    num_bytes: int | None
    """None: not known."""
    source: str


def device(config: Config) -> Device:
    """The memory of one device, without touching it. Processes on a CPU share its memory evenly."""
    stated = config.plan.device_gb
    if config.trainer.accelerator is Accelerator.cpu:
        of_all = psutil.virtual_memory().total if stated is None else int(stated * GIGA)
        shared = f" / {config.trainer.devices} processes" if config.trainer.devices > 1 else ""
        return Device(
            "process",
            of_all // config.trainer.devices,
            ("this machine's" if stated is None else "plan.device_gb") + shared,
        )
    if stated is not None:
        return Device("GPU", int(stated * GIGA), "plan.device_gb")
    found = _nvidia_smi()
    return Device(
        "GPU", found, "nvidia-smi" if found else "no GPU here to ask: state plan.device_gb=80 or whatever it has"
    )


def _nvidia_smi() -> int | None:
    """The smallest GPU's memory, from the driver; no context is made."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    query = [command, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=60)
    sizes = [int(line) << 20 for line in done.stdout.split() if line.isdigit()]
    return min(sizes, default=None)


def needed(config: Config, memory: StepMemory, server_bytes: int) -> dict[str, int]:
    """Bytes of each part on one device at its peak. A CPU's peak may be the loading."""
    if config.trainer.accelerator is Accelerator.cuda:
        return {**memory.step.parts, CUDA: CUDA_BYTES + int(FRAGMENTS * memory.step.total)}
    copied = {
        CHECKPOINT: memory.saved_bytes // config.trainer.devices
    }  # where a device has memory of its own, the host's
    parts = {**memory.peak.parts, **copied, MALLOC: int(HELD_BACK * memory.peak.total), PYTHON: PYTHON_BYTES}
    return {**parts, SERVER: server_bytes // config.trainer.devices} if server_bytes else parts


def verifier_bytes(checkpoint: Checkpoint | None) -> int | None:
    """The verifier's files of weights; None where they aren't here."""
    if checkpoint is None or checkpoint.fetch is not None:
        return None
    return sum((checkpoint.directory / name).stat().st_size for name in checkpoint.files)


def serves(config: Config) -> bool:
    """Whether Eyas starts a vLLM server."""
    wanted = config.capture.engine is CaptureEngine.vllm or config.evaluation.engine is Engine.vllm
    return wanted and config.server.endpoints is None


def server_beside(config: Config, weights: int | None) -> int:
    """What the server takes of the *training's* memory: on-line, on a CPU, where both run at the same time and share it.

    On GPUs the training gets those that the server leaves, and off-line the server is gone before it starts.
    """
    if not (config.capture.online and serves(config) and config.trainer.accelerator is Accelerator.cpu):
        return 0
    cache_gib = config.server.env.get("VLLM_CPU_KVCACHE_SPACE", "4")
    return (weights or 0) + int(float(cache_gib) * 2**30) + PYTHON_BYTES


def memory_problem(total: int, device: Device) -> str | None:
    """Where the training doesn't fit its devices."""
    if device.num_bytes is None or total <= device.num_bytes:
        return None
    return (
        f"the training needs {total / GIGA:.2f} GB on each {device.name}, which has {device.num_bytes / GIGA:.2f} GB "
        f"({device.source}); what would help is above"
    )


def server_problem(config: Config, weights: int | None, device_bytes: int | None) -> str | None:
    """Where the verifier doesn't fit the server's GPUs."""
    if weights is None or device_bytes is None or not serves(config) or config.trainer.accelerator is Accelerator.cpu:
        return None
    share = config.server.memory_share or 0.9
    per_gpu = weights / config.server.tensor_parallel
    if per_gpu < share * device_bytes:
        return None
    enough = next((it for it in (2, 4, 8, 16, 32) if weights / it < 0.9 * share * device_bytes), None)
    fix = f"set server.tensor_parallel={enough}" if enough else "serve it elsewhere: server=endpoints"
    return (
        f"the verifier's weights, {weights / GIGA:.0f} GB, are {per_gpu / GIGA:.0f} GB on each GPU of the server "
        f"(server.tensor_parallel={config.server.tensor_parallel}), which has {share * device_bytes / GIGA:.0f} GB "
        f"(server.memory_share={share:g}); {fix}"
    )


def capture_problem(config: Config, weights: int | None, device_bytes: int | None) -> str | None:
    """Where capture=transformers has the verifier on one GPU, and that is too small for it."""
    capture = config.capture
    if capture.engine is not CaptureEngine.transformers or config.trainer.accelerator is Accelerator.cpu:
        return None
    if capture.device_map is not None or weights is None or device_bytes is None or weights < device_bytes:
        return None
    return (
        f"the verifier's weights, {weights / GIGA:.0f} GB, are too large for one GPU of {device_bytes / GIGA:.0f} GB; set "
        "capture.device_map=auto, or capture=vllm server.tensor_parallel=N"
    )


def disk_problem(config: Config, num_bytes: int) -> str | None:
    """Where states and checkpoints don't fit the disk of `outputs`."""
    place = Path(config.outputs).absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if num_bytes < free:
        return None
    online = "" if config.capture.online else ", keep fewer states: capture=online,"
    return (
        f"states and checkpoints take {num_bytes / GIGA:,.1f} GB, and {free / GIGA:,.1f} GB are free in {place}; set outputs to a "
        f"larger disk{online} or use less data (data.max_conversations, data.sample)"
    )


@dataclass(frozen=True)
class Change:
    """A change of the command line that saves memory."""

    overrides: str
    config: Config


def changes(config: Config) -> Iterator[Change]:
    """One at a time, those first that change least of what is learnt; then all of them together."""
    every: list[tuple[str, Callable[[Config], Config]]] = []
    training, trainer = config.training, config.trainer

    def of_training(**values: object) -> Callable[[Config], Config]:
        return lambda it: replace(it, training=replace(it.training, **values))  # type: ignore[arg-type]

    if not training.activation_checkpointing:
        every.append(("training.activation_checkpointing=true", of_training(activation_checkpointing=True)))
    if training.compute_dtype is Dtype.float32 and trainer.accelerator is Accelerator.cuda:
        every.append(("training.compute_dtype=bfloat16", of_training(compute_dtype=Dtype.bfloat16)))
    if trainer.accelerator is Accelerator.cuda:
        key = "devices" if trainer.devices < GPUS_OF_A_MACHINE else "num_nodes"
        twice = 2 * getattr(trainer, key)
        every.append((f"trainer.{key}={twice}", lambda it: replace(it, trainer=replace(it.trainer, **{key: twice}))))
    elif trainer.devices > 1:
        every.append(("trainer.devices=1", lambda it: replace(it, trainer=replace(it.trainer, devices=1))))
    half = training.row_length // 2
    longest = min(config.data.max_length, half)
    said = f"training.row_length={half}" + ("" if longest == config.data.max_length else f" data.max_length={longest}")

    def shorter(it: Config) -> Config:
        shorter_data = replace(it.data, max_length=longest)
        return replace(it, data=shorter_data, training=replace(it.training, row_length=half))

    every.append((said, shorter))
    for overrides, change in every:
        yield Change(overrides, change(config))
    together = config
    for _, change in every:
        together = change(together)
    yield Change(" ".join(overrides for overrides, _ in every), together)
