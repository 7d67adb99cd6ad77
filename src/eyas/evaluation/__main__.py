"""`python -m eyas.evaluation RUN_DIR`: measures the run's draft with the engine that the configuration names."""

from pathlib import Path

from eyas.config import load_config
from eyas.disk import full_disk_explained
from eyas.evaluation.schema import Engine
from eyas.process import child_main
from eyas.run import Run


def main(directory: Path) -> None:
    run = Run(directory)
    config = load_config(run.config_file)
    if config.evaluation.engine is Engine.vllm:
        from eyas.evaluation.vllm import evaluate
    else:
        from eyas.evaluation.transformers import evaluate
    with full_disk_explained(directory):
        evaluate(config, run)


if __name__ == "__main__":
    child_main(main)
