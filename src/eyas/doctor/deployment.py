"""The doctor's row `deployment`: whether what is captured is what will be served."""

from collections.abc import Sequence
from pathlib import Path

from eyas.capture.schema import CaptureEngine
from eyas.config import Config
from eyas.doctor.findings import Finding, Verdict
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.language import language_config, quantization_block
from eyas.verifier.locate import locate
from eyas.verifier.schema import VerifierConfig

KV_CACHE, QUANTIZATION = "--kv-cache-dtype", "--quantization"


def deployment(config: Config) -> Finding:
    """A draft learns the verifier that was captured; another one, if only by its rounding, says other things."""
    name, checkpoint, wanted = "deployment", locate(config.verifier), config.verifier.deployment
    args = config.verifier.vllm.args
    stated = {"quantization": quantization_of(config.verifier, checkpoint), "KV cache": "auto"}
    captured = {**stated, **captured_options(config)}
    served = {**stated, **_options(args)}
    different = []
    if wanted.path is not None:
        directory = Path(wanted.path).expanduser()
        there = Checkpoint(directory, config.verifier.files.config) if directory.is_dir() else None
        if there is not None:
            served["quantization"] = quantization_of(config.verifier, there)
        repository = (checkpoint.hub or "").partition("@")[0]
        if wanted.path != repository and (there is None or there.identity != checkpoint.identity):
            different.append(f"{config.verifier.path or checkpoint.directory} is captured, {wanted.path} deployed")
    served["quantization"] = wanted.quantization or served["quantization"]
    served["KV cache"] = wanted.kv_cache_dtype or served["KV cache"]
    different += [
        f"{key} {captured[key]} captured, {served[key]} deployed" for key in stated if captured[key] != served[key]
    ]
    if not different:
        same = ", ".join(f"{key} {value}" for key, value in captured.items())
        return Finding(name=name, verdict=Verdict.ok, found=f"what is captured is deployed: {same}")
    return Finding(
        name=name,
        verdict=Verdict.warn,
        found="; ".join(different),
        expected="hidden states and answers of what will be served",
        fix="capture from what is deployed (verifier.path; with capture=vllm also server.kv_cache_dtype), or say in "
        "verifier.deployment what that is",
    )


def quantization_of(verifier: VerifierConfig, checkpoint: Checkpoint) -> str:
    """What a checkpoint says of itself; `none` for plain floats."""
    block = quantization_block(verifier.quantization.path, checkpoint.config, language_config(verifier, checkpoint))
    return str(block.get("quant_method", "none"))


def captured_options(config: Config) -> dict[str, str]:
    """What the server that captures was told; its later arguments win."""
    if config.capture.engine is not CaptureEngine.vllm or config.server.endpoints is not None:
        return {}
    by_field = {} if config.server.kv_cache_dtype == "auto" else {"KV cache": config.server.kv_cache_dtype}
    return {**by_field, **_options(config.verifier.vllm.args), **_options(config.server.args)}


def _options(args: Sequence[str]) -> dict[str, str]:
    """The two options in a command line, as `--option value` or `--option=value`."""
    found = {}
    for arg, after in zip(args, [*args[1:], ""], strict=False):
        head, _, rest = arg.partition("=")
        if head in (KV_CACHE, QUANTIZATION):
            found["KV cache" if head == KV_CACHE else "quantization"] = rest or after
    return found
