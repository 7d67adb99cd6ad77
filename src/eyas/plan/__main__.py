"""`python -m eyas.plan CONFIG`: what a training will take, before it takes it."""

import logging
import sys
from pathlib import Path

from eyas.config import Config, load_config
from eyas.draft.shape import Shape, resolve_shape
from eyas.errors import EyasError
from eyas.plan import amounts, fit
from eyas.plan.amounts import Work, work
from eyas.plan.published import published_facts
from eyas.plan.report import Section, gb, memory_section, print_plan
from eyas.plan.sections import data_rows, draft_rows, machine_rows, time_rows
from eyas.plan.step import step_memory
from eyas.process import EXPLAINED, child_main
from eyas.training.schema import Accelerator
from eyas.verifier.facts import VerifierFacts, resolve
from eyas.verifier.locate import locate


def main(config_file: Path) -> None:
    """Print the plan; code 2 where it doesn't fit."""
    config = load_config(config_file)
    logging.getLogger("torch").setLevel(logging.ERROR)  # it warns of what fake tensors can't do, which nobody asks them
    verifier = config.verifier
    checkpoint = locate(verifier) if verifier.path or verifier.make else None
    facts = published_facts(verifier) if checkpoint is None else resolve(verifier, checkpoint)
    shape = _shape(config, facts, has_checkpoint=checkpoint is not None)
    todo = work(config, has_checkpoint=checkpoint is not None)
    memory = step_memory(config, facts, shape, todo.fullest_row)
    device, weights = fit.device(config), fit.verifier_bytes(checkpoint)
    beside = fit.server_beside(config, weights)
    parts = fit.needed(config, memory, beside)
    total = sum(parts.values())

    disk = amounts.states_bytes(config, shape, todo.tokens or 0) + amounts.checkpoint_bytes(config, memory)
    problems = {
        "memory": fit.memory_problem(total, device),
        "server": fit.server_problem(config, weights, device.num_bytes),
        "capture": fit.capture_problem(config, weights, device.num_bytes),
        "disk": fit.disk_problem(config, disk),
    }
    found = {name: problem for name, problem in problems.items() if problem is not None}
    tried = try_changes(config, facts, shape, todo, beside) if "memory" in found else []

    on_gpu = config.trainer.accelerator is Accelerator.cuda
    moment = memory.step.moment if on_gpu else memory.peak.moment
    where = f"Memory of one {device.name} at its peak, {moment}: {todo.row_source}"
    sections = [
        Section("Draft", draft_rows(config, shape, memory)),
        memory_section(where, parts, device),
        Section("Around it", machine_rows(config, memory, total, weights)),
        Section("Data", data_rows(config, shape, todo, memory)),
        Section("Time", time_rows(config, todo)),
    ]
    facts_from = "as published (no verifier.path)" if checkpoint is None else str(checkpoint.directory)
    devices = f"{config.trainer.num_nodes} x " if config.trainer.num_nodes > 1 else ""
    title = f"{verifier.name}, {facts_from}, on {devices}{config.trainer.devices} {config.trainer.accelerator.name}"
    print_plan(title, [section for section in sections if section.rows], list(found.values()), tried)
    fits = "fits" if device.num_bytes else f"not judged, {device.source}"
    judged = f"does not fit ({', '.join(found)})" if found else fits
    of = "" if device.num_bytes is None else f" of {gb(device.num_bytes)}"
    print(f"plan     {judged}: {gb(total)}{of} on each {device.name}")
    if found:
        sys.exit(EXPLAINED)


def _shape(config: Config, facts: VerifierFacts, *, has_checkpoint: bool) -> Shape:
    try:
        return resolve_shape(config, facts)
    except EyasError as error:
        if has_checkpoint:
            raise
        raise EyasError(f"{error}, or verifier.path, whose config has it") from None


def try_changes(
    config: Config, facts: VerifierFacts, shape: Shape, todo: Work, beside: int
) -> list[tuple[str, str, bool]]:
    """(overrides, what would be needed with them, whether that fits); the last one, all together, only where none is enough."""
    tried: list[tuple[str, str, bool]] = []
    *single, together = fit.changes(config)
    for change in [*single, together]:
        if change is together and any(fits for _, _, fits in tried):
            break
        layout = todo.fullest_row.cut(change.config.training.row_length)
        memory = step_memory(change.config, facts, shape, layout)
        total, room = sum(fit.needed(change.config, memory, beside).values()), fit.device(change.config).num_bytes
        tried.append((change.overrides, gb(total), room is not None and total <= room))
    return tried


if __name__ == "__main__":
    child_main(main)
