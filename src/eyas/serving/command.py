"""The words of `vllm serve`: for a server of ours, and for the line that a user copies. Nothing is run, or heavy to import."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from eyas.errors import EyasError
from eyas.serving.schema import ServerConfig
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.schema import VerifierConfig


def command_line(
    config: ServerConfig, verifier: VerifierConfig, checkpoint: Checkpoint, *, args: Sequence[str] = (), port: int
) -> list[str]:
    """The whole command that serves this verifier; what stands later wins: server, verifier, stage, `server.args`."""
    command = [*config.command, *served_checkpoint(checkpoint)]
    command += ["--served-model-name", verifier.name, "--host", config.host, "--port", str(port)]
    if config.tensor_parallel > 1:
        command += ["--tensor-parallel-size", str(config.tensor_parallel)]
    if config.data_parallel > 1:
        command += ["--data-parallel-size", str(config.data_parallel)]
    if config.expert_parallel:
        command += ["--enable-expert-parallel"]
    if config.memory_share is not None:
        command += ["--gpu-memory-utilization", str(config.memory_share)]
    if config.kv_cache_dtype != "auto":
        command += ["--kv-cache-dtype", config.kv_cache_dtype]
    if config.max_length is not None:
        command += ["--max-model-len", str(config.max_length)]
    return [*command, *verifier_args(verifier), *args, *config.args]


def served_checkpoint(checkpoint: Checkpoint) -> list[str]:
    """The checkpoint as `vllm serve` takes it, pinned to its commit where it is the hub's."""
    repository, _, commit = (checkpoint.hub or "").partition("@")
    return [repository or str(checkpoint.directory), *(["--revision", commit] if commit else [])]


def verifier_args(verifier: VerifierConfig) -> list[str]:
    """What this verifier needs of vLLM, wherever it is served."""
    args: list[str] = []
    if verifier.tokenizer.path is not None:
        args += ["--tokenizer", verifier.tokenizer.path]
    if verifier.chat.template is not None:
        args += ["--chat-template", verifier.chat.template]
    if verifier.chat.kwargs:
        args += ["--default-chat-template-kwargs", json.dumps(verifier.chat.kwargs)]
    return [*args, *verifier.vllm.args]


def environment_of(config: ServerConfig, verifier: VerifierConfig, env: Mapping[str, str]) -> dict[str, str]:
    """The variables that belong to the command: those of GPUs, verifier, stage and server."""
    gpus = {} if config.gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(map(str, config.gpus))}
    return {**gpus, **verifier.vllm.env, **env, **config.env}


def beside_the_server(config: ServerConfig, num_gpus: int) -> dict[str, str]:
    """The variables of something that needs so many GPUs while the server runs: those that the server leaves."""
    if config.gpus is None or not num_gpus:
        return {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(max(config.gpus) + 1 + num_gpus)))
    others = [gpu for gpu in visible.split(",") if gpu not in map(str, config.gpus)]
    if len(others) < num_gpus:
        raise EyasError(
            f"server.gpus={config.gpus} leaves {len(others)} of the GPUs {visible}, and trainer.devices={num_gpus} train "
            "meanwhile; lower one of them"
        )
    return {"CUDA_VISIBLE_DEVICES": ",".join(others[:num_gpus])}


def draft_args(draft: Path | str, k: int) -> list[str]:
    """The arguments that make the server draft k tokens a time."""
    return ["--speculative-config", json.dumps({"method": "eagle3", "model": str(draft), "num_speculative_tokens": k})]
