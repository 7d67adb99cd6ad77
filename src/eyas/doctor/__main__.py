"""`python -m eyas.doctor CONFIG`: the checks before step 1 that need torch. Each raises one line, or is silent."""

from pathlib import Path

import torch

from eyas.config import Accelerator, Config, load_config
from eyas.errors import EyasError
from eyas.process import child_main
from eyas.stages import verifier_facts
from eyas.training.third_party import check
from eyas.verifier.locate import locate


def third_party_arguments(config: Config) -> None:
    """The groups that name other libraries' objects take the arguments they are given."""
    check("optimizer", config.optimizer)
    check("scheduler", config.scheduler, num_steps=1)
    check("trainer.strategy", config.trainer.strategy, data_parallel_size=1)
    for key, mapping in config.logger.items():
        check(f"logger.{key}", mapping)


def verifier_tensors(config: Config) -> None:
    """The embedding, the norm and the head can be read, and are finite."""
    checkpoint, facts = locate(config.verifier), verifier_facts(config)
    for key in (facts.embedding_key, facts.norm_key, facts.head_key):
        tensor = checkpoint.tensor(key)
        if not tensor.isfinite().all() or not tensor.any():
            raise EyasError(
                f"verifier {config.verifier.name}: {key} is not finite, or all zero; the checkpoint is damaged"
            )


def devices(config: Config) -> None:
    """The devices exist, and an optimizer step's rows can be dealt to them evenly."""
    trainer, rows = config.trainer, config.training.rows_per_step
    num_cuda = torch.cuda.device_count()
    if trainer.accelerator is Accelerator.cuda and num_cuda < trainer.devices:
        raise EyasError(
            f"trainer.devices={trainer.devices}: this machine has {num_cuda} CUDA devices; trainer=cpu needs none"
        )
    if rows % (trainer.devices * trainer.num_nodes):
        raise EyasError(
            f"training.rows_per_step={rows} can't be dealt evenly to {trainer.devices * trainer.num_nodes} devices"
        )


def main(config_file: Path) -> None:
    config = load_config(config_file)
    devices(config)
    third_party_arguments(config)
    verifier_tensors(config)


if __name__ == "__main__":
    child_main(main)
