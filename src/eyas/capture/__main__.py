"""`python -m eyas.capture CONFIG`: the states stage, with the engine that the configuration names."""

from pathlib import Path

from eyas.capture.stage import capture
from eyas.config import Engine, load_config
from eyas.process import child_main


def main(config_file: Path) -> None:
    config = load_config(config_file)
    if config.capture.engine is Engine.vllm:
        from eyas.capture.vllm import in_vllm

        capture(config, in_vllm)
    else:
        from eyas.capture.transformers import in_transformers

        capture(config, in_transformers)


if __name__ == "__main__":
    child_main(main)
