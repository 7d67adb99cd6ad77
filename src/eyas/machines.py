"""The machines of a run: one supervisor on each, started together by torchrun or SLURM. Torch-free.

The first one walks the stages. The others wait for its word, and start their share of the training's processes when it comes. All
that passes between them is in the run's directory, a small file for each machine, written anew every second: nobody waits in a
collective while a capture takes its days, and a machine that is gone falls silent.
"""

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from eyas.artifact import write_file
from eyas.errors import EyasError
from eyas.process import EXPLAINED
from eyas.training.schema import TrainerConfig

BEAT_SECONDS = 1.0
SILENCE_SECONDS = 300.0
"""Longer than a network file system keeps what it has read (60 seconds by NFS's own defaults)."""

START = "torchrun --nnodes={} --nproc-per-node=1 train.py ... on each machine, or srun --ntasks-per-node=1"


@dataclass(frozen=True)
class Machines:
    """This machine among those that were started."""

    number: int
    count: int
    address: str | None
    """Where the first is reached, if the launcher says so."""
    spare: bool
    """Another process on this machine does the work: its supervisor starts one for each device itself."""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self:
        """As torchrun or `srun` describe them; without either, this machine alone."""

        def number(name: str) -> int:
            return int(environment.get(name, "0"))

        if "TORCHELASTIC_RUN_ID" in environment:
            count, spare = int(environment["GROUP_WORLD_SIZE"]), number("LOCAL_RANK") > 0
            return cls(number("GROUP_RANK"), count, environment.get("MASTER_ADDR"), spare)
        if "SLURM_STEP_NUM_NODES" in environment:  # not in a batch script, which runs on one of its machines only
            return cls(number("SLURM_NODEID"), number("SLURM_STEP_NUM_NODES"), None, number("SLURM_LOCALID") > 0)
        return cls(0, 1, None, False)

    @property
    def first(self) -> bool:
        return self.number == 0

    def check(self, trainer: TrainerConfig) -> None:
        """Raises:
        EyasError: there are more or fewer than the configuration says.
        """
        if trainer.num_nodes != self.count:
            found = f"{self.count} machine{'s were' if self.count > 1 else ' was'} started"
            start = START.format(trainer.num_nodes)
            raise EyasError(
                f"trainer.num_nodes={trainer.num_nodes}, and {found}: set trainer.num_nodes={self.count}, or start it with {start}"
            )


@dataclass(frozen=True)
class Word:
    """What a machine has to say."""

    beat: float
    says: str = "here"
    """here, train, or end."""
    call: int = 0
    """How many trainings it has called for."""
    address: str = ""
    port: int = 0
    code: int = 0
    """Its exit code, at the end."""


class Gathering:
    """This machine's word, spoken every second, and those of the others."""

    def __init__(self, directory: Path, machines: Machines) -> None:
        self.directory, self.machines = directory, machines
        self.word = Word(time.time())
        self._speaking = threading.Lock()
        self.heard: dict[int, tuple[float, float, float]] = {}
        """Of each machine: the beat it had when first looked at (what an earlier start left says nothing), its last one, and when
        that was first seen, by the clock of this machine."""

    def say(self, **what: object) -> None:
        """Say something, or again what was said last."""
        with self._speaking:
            self.word = replace(self.word, beat=time.time(), **what)  # type: ignore[arg-type]
            if self.machines.count > 1:
                self.directory.mkdir(parents=True, exist_ok=True)
                write_file(self._file(self.machines.number), json.dumps(vars(self.word)))

    def hear(self, number: int) -> Word | None:
        """The last word of a machine; None before its first.

        Raises:
            EyasError: it has been silent for too long.
        """
        word, now = self._read(number), time.monotonic()
        beat = word.beat if word else 0.0
        first, last, since = self.heard.get(number, (beat, beat, now))
        since = now if beat != last else since
        self.heard[number] = first, beat, since
        if now - since > SILENCE_SECONDS:
            raise EyasError(
                f"machine {number} of {self.machines.count} has said nothing for {SILENCE_SECONDS:g} seconds in "
                f"{self.directory}: start the same command on each machine ({START.format(self.machines.count)}), and let "
                "outputs be a directory that all of them see"
            )
        return word if beat != first else None

    def call(self, free_port: Callable[[], int]) -> tuple[str, int]:
        """Call all machines to a training: (address, port) where its processes meet.

        Raises:
            EyasError: one of them has fallen silent.
        """
        port = free_port()
        if self.machines.count == 1:
            return "127.0.0.1", port
        self.others_are_there()
        address = self.machines.address or socket.gethostname()
        self.say(says="train", call=self.word.call + 1, address=address, port=port)
        return address, port

    def others_are_there(self) -> bool:
        heard = [self.hear(number) for number in range(1, self.machines.count)]
        return all(heard)

    def _file(self, number: int) -> Path:
        return self.directory / f"{number}.json"

    def _read(self, number: int) -> Word | None:
        with suppress(FileNotFoundError, json.JSONDecodeError):
            return Word(**json.loads(self._file(number).read_text()))
        return None


@contextmanager
def gathered(run_directory: Path, machines: Machines) -> Iterator[Gathering]:
    """All machines of a run; the first one goes on when the others are there. They hear how this one ends."""
    gathering = Gathering(run_directory / ".machines", machines)
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT_SECONDS):
            with suppress(
                OSError, EyasError
            ):  # a full disk; the next one may be written again. Silence is said by `call`
                gathering.say()
                if machines.first:
                    gathering.others_are_there()

    speaker = threading.Thread(target=beat, daemon=True)
    try:
        gathering.say()
        if machines.count > 1:
            speaker.start()
            print(f"machines {machines.number} of {machines.count}, on {socket.gethostname()}", flush=True)
        while machines.first and not gathering.others_are_there():
            time.sleep(BEAT_SECONDS / 4)
        yield gathering
    except BaseException as error:
        ended.set()
        gathering.say(says="end", code=exit_code(error))
        raise
    ended.set()
    gathering.say(says="end")


def exit_code(error: BaseException) -> int:
    """With which this process will end for an error that nobody catches."""
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return error.code
    return EXPLAINED if isinstance(error, EyasError) else 1


def follow(gathering: Gathering, train: Callable[[tuple[str, int]], None]) -> None:
    """On a machine that isn't the first: do what that one says, until it ends.

    Args:
        train: Starts this machine's share of a training, whose processes meet at (address, port), and waits for it.

    Raises:
        EyasError: the first machine has fallen silent.
        SystemExit: it has failed.
    """
    calls = 0
    while True:
        word = gathering.hear(0)
        if word and word.says == "end":
            if word.code:
                print(f"eyas: machine 0 has ended with exit code {word.code}", file=sys.stderr, flush=True)
                raise SystemExit(word.code)
            return
        if word and word.says == "train" and word.call > calls:
            calls = word.call
            train((word.address, word.port))
        time.sleep(BEAT_SECONDS / 4)
