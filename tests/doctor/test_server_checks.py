"""What is refused before step 1 because vLLM would compute another verifier, or isn't there at all."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from eyas.config import Config
from eyas.doctor.training_checks import check_config_keys
from eyas.errors import EyasError
from eyas.stages import check_server, served_stages
from eyas.verifier.checkpoint import Checkpoint

KEYS = ["verifier.vllm.config_keys=[scoring_func,topk_method]"]


def test_a_config_that_lacks_what_vllm_would_guess(
    tiny: Callable[..., Config], tiny_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    directory = tmp_path / "checkpoint"
    shutil.copytree(tiny_checkpoint.directory, directory)
    file = directory / "config.json"
    values = json.loads(file.read_text())
    with pytest.raises(EyasError, match=r"lacks scoring_func, topk_method, for which vLLM takes another default"):
        check_config_keys(tiny(f"verifier.path={directory}", *KEYS))
    other = tmp_path / "whole"
    shutil.copytree(directory, other)
    (other / "config.json").write_text(json.dumps({**values, "scoring_func": "sigmoid", "topk_method": "noaux_tc"}))
    check_config_keys(tiny(f"verifier.path={other}", *KEYS))


def test_without_vllm_the_ways_out_are_named(tiny: Callable[..., Config], tiny_checkpoint: Checkpoint) -> None:
    served = ("capture=vllm", "evaluation=vllm", "data.responses=regenerate", "server.command=[no-such-vllm,serve]")
    with pytest.raises(EyasError) as error:
        check_server(tiny(*served))
    for words in (
        "no-such-vllm",
        "server=endpoints",
        "capture=transformers",
        "evaluation=transformers",
        "responses=keep",
    ):
        assert words in str(error.value)
    check_server(tiny(*served[:3], f"server.command=[{sys.executable}]"))
    check_server(tiny("capture=vllm", *served[2:], "server=endpoints"))
    assert served_stages(tiny()) == {}
