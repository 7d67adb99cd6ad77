"""The doctor's rows that are not about facts: devices, other libraries' arguments, tensors that can be read."""

import torch

from eyas.capture.refusal import refuse_what_vllm_cannot
from eyas.capture.schema import CaptureEngine
from eyas.config import Config
from eyas.doctor.findings import Finding, Verdict
from eyas.doctor.subject import failure
from eyas.errors import EyasError
from eyas.evaluation.schema import Engine
from eyas.stages import check_server, served_stages, verifier_facts
from eyas.training.schema import Accelerator
from eyas.training.third_party import check
from eyas.verifier.language import quantization_block
from eyas.verifier.locate import locate
from eyas.verifier.tensors import read_tensor


def third_party_arguments(config: Config) -> str:
    """The groups that name other libraries' objects take the arguments they are given."""
    check("optimizer", config.optimizer)
    check("scheduler", config.scheduler, num_steps=1)
    check("trainer.strategy", config.trainer.strategy, data_parallel_size=1, timeout=None)
    for key, mapping in config.logger.items():
        check(f"logger.{key}", mapping)
    return f"{config.optimizer['_target_']}, {config.scheduler['_target_']} take their arguments"


def verifier_tensors(config: Config) -> str:
    """The embedding, the norm and the head can be read, and are finite."""
    checkpoint, facts = locate(config.verifier), verifier_facts(config)
    for stored in facts.tensors:
        tensor = read_tensor(checkpoint, stored)
        if not tensor.isfinite().all() or not tensor.any():
            raise EyasError(
                f"verifier {config.verifier.name}: {stored.key} is not finite, or all zero; the checkpoint is damaged"
            )
    return f"{len(facts.tensors)} tensors read, finite"


def engines(config: Config) -> str:
    """vLLM is there where it is needed; elsewhere transformers reads this checkpoint's layout and quantisation."""
    check_server(config)
    if config.capture.engine is CaptureEngine.vllm:
        refuse_what_vllm_cannot(config)
    if served_stages(config):
        check_config_keys(config)
    by_vllm = ", ".join(served_stages(config))
    in_transformers = (
        config.capture.engine is CaptureEngine.transformers or config.evaluation.engine is Engine.transformers
    )
    return "; ".join(
        it for it in (_transformers(config) if in_transformers else "", by_vllm and f"vLLM: {by_vllm}") if it
    )


def check_config_keys(config: Config) -> None:
    """Whether the checkpoint's config says all that vLLM would otherwise guess.

    Raises:
        EyasError: a key is missing (transformers does not save what it takes for granted).
    """
    language = verifier_facts(config).language_config
    missing = [key for key in config.verifier.vllm.config_keys if key not in language]
    if missing:
        raise EyasError(
            f"{locate(config.verifier).directory}/config.json lacks {', '.join(missing)}, for which vLLM takes another default than "
            "this model, so it would compute another one; copy them from the original checkpoint's config.json"
        )


def _transformers(config: Config) -> str:
    checkpoint = locate(config.verifier)
    if checkpoint.config_file != "config.json":
        raise EyasError(
            f"{checkpoint.directory} is read in the layout of {checkpoint.config_file}, which transformers does not load; "
            "set verifier.path to a directory with config.json"
        )
    block = quantization_block(
        config.verifier.quantization.path, checkpoint.config, verifier_facts(config).language_config
    )
    if block:
        from transformers.quantizers.auto import AutoHfQuantizer, AutoQuantizationConfig  # seconds, seldom needed

        try:
            quantizer = AutoHfQuantizer.from_config(AutoQuantizationConfig.from_dict(dict(block)))
            quantizer.validate_environment(device_map=None)
        except (ImportError, ValueError, RuntimeError) as error:
            raise EyasError(
                f"transformers can't run this quantised checkpoint: {str(error).strip().splitlines()[0]}"
            ) from None
    return "transformers"


def devices(config: Config) -> str:
    """The devices exist, and an optimizer step's rows can be dealt to them evenly."""
    trainer, rows = config.trainer, config.training.rows_per_step
    num_cuda = torch.cuda.device_count()
    if trainer.accelerator is Accelerator.cuda and num_cuda < trainer.devices:
        raise EyasError(
            f"trainer.devices={trainer.devices}: this machine has {num_cuda} CUDA devices; trainer=cpu needs none"
        )
    trainer.check_divides(rows)
    return f"{trainer.devices} x {trainer.accelerator.name}, {rows} rows a step"


def examine_training(config: Config) -> list[Finding]:
    """These three as rows."""
    findings = []
    for name, examine in (
        ("engines", engines),
        ("devices", devices),
        ("third_party_arguments", third_party_arguments),
        ("verifier_tensors", verifier_tensors),
    ):
        try:
            findings.append(Finding(name=name, verdict=Verdict.ok, found=examine(config)))
        except EyasError as error:
            findings.append(failure(name, error))
    return findings
