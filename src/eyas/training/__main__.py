"""`python -m eyas.training RUN_DIR`: one rank of a training (`training/launch.py`); the first one exports as well."""

import atexit
import os
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from torch import OutOfMemoryError
from torch.distributed import DistError

from eyas.disk import full_disk_explained
from eyas.draft.export import export
from eyas.errors import EyasError
from eyas.process import child_main
from eyas.run import Run
from eyas.training.fit import fit
from eyas.training.launch import LOST


def main(directory: Path) -> None:
    run = Run(directory)
    try:
        with full_disk_explained(directory):
            if fit(run):  # here rather than in a process of its own, which would take as long to start as to export
                export(run)
    except OutOfMemoryError:  # a GPU's; a CPU's ends the process
        raise EyasError(
            "the GPU's memory is full: `eyas plan` with the same words says what takes it, and what would help "
            "(training.activation_checkpointing=true, a shorter training.row_length, more trainer.devices)"
        ) from None
    except RuntimeError as error:
        if not is_loss(error):
            raise
        print(error, file=sys.stderr, flush=True)
        sys.exit(LOST)


def is_loss(error: RuntimeError) -> bool:
    """Whether another rank has gone, or let this one wait too long."""
    return isinstance(error, DistError) or "/gloo/" in str(error)  # gloo says no more than where in its source it was


def end(code: int) -> NoReturn:
    """Leave without the interpreter's own end: a thread of gloo that lets go of a tensor only then aborts the process."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    try:
        child_main(main)
    except SystemExit as leaving:
        end(int(leaving.code or 0))
    except BaseException:
        traceback.print_exc()
        end(1)
