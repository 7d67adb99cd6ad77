"""Lightning's strategy for FSDP2, with checkpoints that are written beside the training."""

import errno
import os
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.load import _METADATA_FILENAME
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import distributed
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import async_save

from eyas.disk import comes_from_full_disk


class ShardedStrategy(ModelParallelStrategy):
    """Saving stops the training for as long as it takes to copy the shards into memory; a thread writes them.

    The files are those of ModelParallelStrategy, which reads them.
    """

    _saving: "Future[Any] | None" = None
    _writers: Any = None

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None) -> None:
        """Begin to write a checkpoint to a directory, the same on all ranks."""
        assert self._saving is None, "one at a time"
        if self._writers is None:  # of their own: what a thread exchanges must not mix with what the steps do
            self._writers = distributed.new_group(backend="gloo", timeout=self._timeout)
        directory = Path(filepath)
        directory.mkdir(parents=True, exist_ok=True)
        state = {"state_dict": checkpoint.pop("state_dict")}
        state |= {f"optimizer_{index}": it for index, it in enumerate(checkpoint.pop("optimizer_states", []))}
        if self.global_rank == 0:
            with (directory / _METADATA_FILENAME).open(
                "wb"
            ) as stream:  # torch's own files don't say why they can't be written
                torch.save(checkpoint, stream)
        # Said, since a writer of files would otherwise copy the shards itself, and that takes more memory.
        copies = DefaultStager(StagingOptions(False, False, False, False))
        saving = async_save(state, storage_writer=_Writer(directory), async_stager=copies, process_group=self._writers)
        assert isinstance(saving, Future)
        self._saving = saving

    def has_saved(self) -> bool:
        """Whether a checkpoint that was begun is there, or has failed; ranks know it at about the same time."""
        return self._saving is not None and self._saving.done()

    def finish_saving(self) -> None:
        """Wait for the checkpoint that was begun: with rank 0's end of it, all ranks' files are there.

        Raises:
            CheckpointException: it can't be written; by rank, why.
        """
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()


class _Writer(FileSystemWriter):
    """One rank's files. An error goes to the other ranks without the ones behind it: a full disk must be the error itself."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Any:
        try:
            return super().write_data(plan, planner)
        except RuntimeError as error:
            if comes_from_full_disk(error):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from None
            raise
