"""Slots: shares of this machine, so that jobs run side by side and none takes what is another's."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

from eyas.config import Config
from eyas.errors import EyasError
from eyas.training.schema import Accelerator


@dataclass(frozen=True)
class Slot:
    """A share of this machine; empty where it is all of it."""

    number: int
    gpus: tuple[str, ...] = ()
    """As CUDA_VISIBLE_DEVICES names them."""
    cores: tuple[int, ...] = ()
    threads: int | None = None
    """Of each process."""

    def environment(self) -> dict[str, str]:
        """The variables of a job in this slot."""
        gpus = {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)} if self.gpus else {}
        threads = {"OMP_NUM_THREADS": str(self.threads)} if self.threads and "OMP_NUM_THREADS" not in os.environ else {}
        return {**gpus, **threads}

    @contextmanager
    def entered(self) -> Iterator[None]:
        """What is started meanwhile has this slot's cores: a process inherits them, and so do its children."""
        if not self.cores:
            yield
            return
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self.cores)
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)


def slots_for(configs: Sequence[Config]) -> list[Slot]:
    """As many slots as `sweep.slots` says, each large enough for any of the jobs.

    Raises:
        EyasError: this machine has too few devices for them, or the jobs would share a server's.
    """
    number = configs[0].sweep.slots
    if number == 1:
        return [Slot(0)]
    for config in configs:
        check_apart(config)
    all_cores = sorted(os.sched_getaffinity(0))
    devices = max(config.trainer.devices for config in configs)
    on_gpus = [config for config in configs if config.trainer.accelerator is Accelerator.cuda]
    if len(all_cores) < number and not on_gpus:
        raise EyasError(f"sweep.slots={number}: there are {len(all_cores)} cores; set sweep.slots={len(all_cores)}")
    cores = share(all_cores, number)
    if not on_gpus:
        return [Slot(place, (), own, max(1, len(own) // devices)) for place, own in enumerate(cores)]
    needed = max(num_gpus(config) for config in on_gpus)
    visible = visible_gpus()
    if len(visible) < number * needed:
        fit = len(visible) // needed
        raise EyasError(
            f"sweep.slots={number} jobs of {needed} GPUs each (trainer.devices, or the server's) need {number * needed}, and there "
            f"are {len(visible)} ({','.join(visible) or 'none'}); "
            + (f"set sweep.slots={fit}" if fit else "lower trainer.devices")
        )
    gpus = [tuple(visible[place * needed : (place + 1) * needed]) for place in range(number)]
    return [
        Slot(place, own, cores[place], max(1, len(cores[place]) // devices) if cores[place] else None)
        for place, own in enumerate(gpus)
    ]


def share(cores: Sequence[int], number: int) -> list[tuple[int, ...]]:
    """Cores dealt to so many slots, neighbours together; none where there are too few for all."""
    each, more = divmod(len(cores), number)
    if not each:
        return [()] * number
    starts = [place * each + min(place, more) for place in range(number + 1)]
    return [tuple(cores[start:end]) for start, end in pairwise(starts)]


def num_gpus(config: Config) -> int:
    """GPUs that a job has at a time: training's, or those of its server, which is gone by then."""
    server = config.server
    served = 0 if server.endpoints is not None else server.tensor_parallel * server.data_parallel
    return max(config.trainer.devices, served)


def check_apart(config: Config) -> None:
    """Whether this job's server can run beside another job's.

    Raises:
        EyasError: both would want the same port or GPUs.
    """
    server = config.server
    for key, value in (("port", server.port), ("gpus", server.gpus)):
        if server.endpoints is None and value is not None:
            raise EyasError(
                f"server.{key}={value} with sweep.slots={config.sweep.slots}: jobs side by side can't have the same; leave it "
                f"to the slot (server.{key}=null), or set sweep.slots=1"
            )


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, by the names of CUDA_VISIBLE_DEVICES."""
    if (chosen := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [gpu.strip() for gpu in chosen.split(",") if gpu.strip()]
    query = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        return []
