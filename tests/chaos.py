"""A run that is killed again and again: `python -m tests.chaos` kills one 20 times and writes docs/chaos.md.

SIGKILL comes at seeded random moments of the capture, of a step, while a checkpoint is written and during the export; it hits
the supervisor (or rank 0) and another of its processes by turns. The same command is started again each time, and the
weights at the end are those of a run that nobody disturbed, bit for bit.
"""

import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import psutil
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parent))
from running import ROOT, Running

OPTIONS = (
    *("verifier=tiny_llama", "trainer.devices=2", "evaluation=none", "data.num_processes=1"),
    *("capture.tokens_per_shard=2000", "capture.tokens_per_batch=256", "training.epochs=null", "training.max_steps=33"),
    *("training.log_every_n_steps=1", "training.checkpoint_every_n_steps=3", "training.validate_every_n_steps=6"),
)
NUM_STEPS, NUM_SHARDS = 33, 12


@dataclass(frozen=True)
class Moment:
    """When SIGKILL comes, and to whom."""

    phase: str
    progress: int
    """Of the capture in shards, of a step or a checkpoint in steps."""
    seconds: float
    """So long after that."""
    victim: str

    def __str__(self) -> str:
        after = {"capture": f"after {self.progress} shards", "export": "during it"}
        return f"{self.phase}, {after.get(self.phase, f'step {self.progress}')}, {self.seconds * 1000:.0f} ms later"


def moments(number: int, seed: int = 0) -> list[Moment]:
    """In the order of the run: a quarter of them each in capture, step, checkpoint and export."""
    chance, each = random.Random(seed), number // 4
    victims = {phase: cycle(who) for phase, who in VICTIMS.items()}

    def moment(phase: str, progress: int, longest: float) -> Moment:
        return Moment(phase, progress, chance.uniform(0, longest), next(victims[phase]))

    shards = sorted(chance.sample(range(NUM_SHARDS - 2), each))
    steps = sorted(chance.sample(range(2, NUM_STEPS - 1, 3), 2 * each))
    return [
        *(moment("capture", shard, 0.05) for shard in shards),
        *(moment(("step", "checkpoint")[at % 2], step, (0.2, 0.05)[at % 2]) for at, step in enumerate(steps)),
        *(moment("export", NUM_STEPS, 0.1) for _ in range(each)),
    ]


VICTIMS = {
    "capture": ("supervisor", "stage"),
    "step": ("rank 1", "rank 0"),
    "checkpoint": ("supervisor", "rank 1"),
    "export": ("stage", "supervisor"),
}


def disturbed(outputs: Path, when: Sequence[Moment]) -> Iterator[tuple[Moment, str]]:
    """Run until nobody kills it any more; yields each kill with what the supervisor said."""
    for moment in when:
        if moment.phase == "export":  # there is something to export, also where the last kill came too late
            for draft in outputs.glob("run/draft*"):
                shutil.rmtree(draft)
        running = Running.start(outputs, *OPTIONS)
        running.wait_for(lambda moment=moment, running=running: has_come(moment, running))  # type: ignore[misc]
        time.sleep(moment.seconds)
        running.kill(victim_of(moment, running))
        _, _, said = running.end()
        yield moment, said
    code, _, said = Running.start(outputs, *OPTIONS).end()
    assert (code, said) == (0, ""), said


def has_come(moment: Moment, running: Running) -> bool:
    if moment.phase == "capture":
        shards = list((running.run.directory.parent / "store" / "states").glob("*.partial/shard-*.safetensors"))
        return len(shards) >= moment.progress and bool(running.children()) and stage_runs(running, "eyas.capture")
    if moment.phase == "export":
        return running.run.draft.with_suffix(".partial").exists()
    if moment.phase == "checkpoint":
        partial = [int(path.stem[5:]) for path in running.run.checkpoints.glob("step-*.partial")]
        return any(step >= moment.progress for step in partial)
    return running.steps() >= moment.progress


def stage_runs(running: Running, module: str) -> bool:
    for child in running.children():
        with suppress(psutil.Error):  # it has ended just now
            if module in child.cmdline():
                return True
    return False


def victim_of(moment: Moment, running: Running) -> psutil.Process | None:
    if moment.victim == "supervisor":
        return None
    if moment.victim.startswith("rank"):
        return running.rank(int(moment.victim[-1]))
    return next(iter(running.children()), None)  # the stage may have ended just now: then the supervisor


def same_weights(ours: Path, theirs: Path) -> bool:
    """Bit for bit."""
    one, other = (load_file(outputs / "run" / "draft" / "model.safetensors") for outputs in (ours, theirs))
    return one.keys() == other.keys() and all((one[name] == other[name]).all() for name in one)


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        undisturbed, outputs = Path(scratch) / "undisturbed", Path(scratch) / "disturbed"
        code, _, said = Running.start(undisturbed, *OPTIONS).end()
        assert code == 0, said
        lines = []
        for moment, said in disturbed(outputs, moments(20)):
            lines.append(f"| {len(lines) + 1} | {moment} | {moment.victim} | {said.strip() or '(gone)'} |")
            print(lines[-1], flush=True)
        verdict = "identical, bit for bit" if same_weights(outputs, undisturbed) else "DIFFERENT"
    page = ROOT / "docs" / "chaos.md"
    intro = page.read_text().split("## Last result")[0] if page.exists() else ""
    table = "| # | SIGKILL | to | what the supervisor said |\n|--|--|--|--|\n" + "\n".join(lines)
    page.write_text(
        f"{intro}## Last result\n\nWeights after 20 kills and those of a run without any: **{verdict}**.\n\n{table}\n"
    )
    print(verdict)
    sys.exit(verdict == "DIFFERENT")


if __name__ == "__main__":
    main()
