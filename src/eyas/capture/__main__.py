"""`python -m eyas.capture CONFIG`: the states stage, with the engine that the configuration names."""

from pathlib import Path

from eyas.capture.schema import CaptureEngine
from eyas.capture.stage import capture
from eyas.config import load_config
from eyas.process import child_main
from eyas.stages import num_capture_workers


def main(config_file: Path) -> None:
    config = load_config(config_file)
    match config.capture.engine:
        case CaptureEngine.files:
            from eyas.capture.files import adopt

            adopt(config)
        case CaptureEngine.vllm:
            from eyas.capture.vllm import in_vllm

            capture(config, in_vllm)
        case CaptureEngine.transformers:
            from eyas.capture.transformers import in_transformers
            from eyas.capture.workers import written_by_workers

            several = num_capture_workers(config) > 1
            capture(config, in_transformers, write=written_by_workers if several else None)


if __name__ == "__main__":
    child_main(main)
