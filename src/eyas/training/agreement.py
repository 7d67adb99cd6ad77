"""Before step 1 all ranks have the same configuration, data and draft: sharding would mix what differs, and nobody would see it.

Afterwards there is nothing to compare: no two ranks hold the same weights, and what they make together is one number for all.
"""

import hashlib
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, cast

import lightning
import torch
from lightning import Trainer
from torch import Tensor, distributed
from torch.distributed.distributed_c10d import _set_pg_timeout

from eyas.errors import EyasError


class Agreement(lightning.Callback):
    """Compares `facts`, by name, between the ranks, and sets how long these wait for each other."""

    def __init__(self, facts: Mapping[str, str], timeout: timedelta) -> None:
        self.facts, self.timeout = dict(facts), timeout

    def setup(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        everyone: list[dict[str, str]] = [{}] * trainer.world_size
        distributed.all_gather_object(everyone, self.facts)
        for rank, facts in enumerate(everyone):
            different = [name for name, value in facts.items() if value != everyone[0][name]]
            if different:
                raise EyasError(
                    f"rank {rank} has another {' and another '.join(different)} than rank 0; all machines must see the same "
                    "files and have the same versions installed"
                )
        for group in cast(
            Any, trainer.strategy
        ).device_mesh.get_all_groups():  # the strategy's own time-out is not theirs
            _set_pg_timeout(self.timeout, group)


def checksum(tensors: Iterable[Tensor]) -> str:
    """sha256 over the bytes of tensors."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()
