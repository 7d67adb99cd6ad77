"""`python -m eyas.capture CONFIG`: the states stage, with the engine that the configuration names."""

from pathlib import Path

from eyas.capture.transformers import capture
from eyas.config import load_config
from eyas.process import child_main
from eyas.stages import check_engines


def main(config_file: Path) -> None:
    config = load_config(config_file)
    check_engines(config)
    capture(config)


if __name__ == "__main__":
    child_main(main)
