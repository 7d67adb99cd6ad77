"""`python -m eyas.capture.online RUN_DIR`: captures what a run is about to train on, while it trains.

It needs the plan of the training, not the training: both know the order of the rows beforehand. What passes between them is
in a directory, `eyas.data.window`.
"""

import signal
import sys
from pathlib import Path

from eyas.artifact import write_file
from eyas.capture.schema import Keep
from eyas.capture.stage import proof, refuse_full_disk
from eyas.capture.supply import Supply
from eyas.capture.vllm import in_vllm
from eyas.config import Config, load_config
from eyas.data.plan import Plan
from eyas.data.tokens import Tokens
from eyas.data.window import Window
from eyas.disk import full_disk_explained
from eyas.process import child_main
from eyas.run import Run
from eyas.stages import parity_file, tokens_artifact


def main(directory: Path) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # an exception: the server is stopped
    run = Run(directory)
    config = load_config(run.config_file)
    window = Window(run.window, Tokens(tokens_artifact(config).directory))
    with full_disk_explained(window.directory):
        try:
            supply(config, run, window)
        finally:
            window.end()


def supply(config: Config, run: Run, window: Window) -> None:
    """Fill the window until the last step has what it needs."""
    tokens, capture = window.tokens, config.capture
    needed = sum(tokens.lengths) if capture.keep is Keep.all else capture.window_tokens
    refuse_full_disk(config, needed, window.directory)
    plan = Plan.of(config, tokens.lengths, tokens.num_train_rows)
    first_step, every = run.trained_steps(), config.evaluation.every_n_steps
    # A training that pauses ends there, and so does what goes on beside it.
    last_step = min(plan.num_steps, (first_step // every + 1) * every) if every else plan.num_steps
    with in_vllm(config, tokens, run.directory) as engine:
        write_file(run.directory / parity_file(config).name, proof(config, engine))
        queue = Supply(
            plan,
            window,
            keep=capture.keep,
            window_tokens=capture.window_tokens,
            max_in_flight=engine.max_in_flight,
            first_step=first_step,
            last_step=last_step,
        )
        num_tokens = 0
        for row, states_TLH in engine.states(queue):
            queue.add(row, states_TLH)
            num_tokens += len(states_TLH)
        window.end()
    of = sum(tokens.lengths)
    print(f"capture  {num_tokens:,} tokens captured while training ({num_tokens / of:.1f} x the data)", flush=True)


if __name__ == "__main__":
    child_main(main)
