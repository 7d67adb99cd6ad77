"""`python -m eyas.doctor CONFIG`: the checks before step 1 that need torch. Each raises one line, or is silent."""

from pathlib import Path

import torch

from eyas.config import Config, load_config
from eyas.process import child_main
from eyas.stages import verifier_facts
from eyas.training.third_party import check
from eyas.verifier.locate import locate
from eyas.verifier.teacher import Teacher


def third_party_arguments(config: Config) -> None:
    """The groups that name other libraries' objects take the arguments they are given."""
    check("optimizer", config.optimizer)
    check("scheduler", config.scheduler, num_steps=1)
    check("trainer.strategy", config.trainer.strategy)
    for key, mapping in config.logger.items():
        check(f"logger.{key}", mapping)


def verifier_tensors(config: Config) -> None:
    """The embedding, the norm and the head can be read, and are finite."""
    checkpoint, facts = locate(config.verifier), verifier_facts(config)
    teacher = Teacher.from_checkpoint(checkpoint, facts, torch.float32)
    logits = teacher(torch.randn(2, facts.hidden_size, generator=torch.Generator().manual_seed(0)))
    assert logits.shape == (2, facts.vocab_size)


def main(config_file: Path) -> None:
    config = load_config(config_file)
    third_party_arguments(config)
    verifier_tensors(config)


if __name__ == "__main__":
    child_main(main)
