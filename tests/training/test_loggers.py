"""Loggers by YAML alone: one, several, and those whose package isn't there."""

from importlib.util import find_spec

import pytest

from eyas.cli.compose import compose
from eyas.errors import EyasError
from eyas.training.third_party import check


def test_several_loggers_at_once() -> None:
    config = compose(["name=s/a", "outputs=/o", "logger=[wandb_offline,tensorboard,mlflow]"], [])
    assert list(config.logger) == ["wandb", "tensorboard", "mlflow"]
    assert config.logger["wandb"]["offline"] is True
    assert config.logger["tensorboard"]["save_dir"] == "/o/s/a/tensorboard"
    assert compose(["logger=none"], []).logger == compose(["logger=csv"], []).logger == {}


@pytest.mark.parametrize("option", ["tensorboard", "mlflow"])
def test_a_package_that_is_missing_is_named_with_the_line_that_installs_it(option: str) -> None:
    mapping = compose([f"logger={option}"], []).logger[option]
    if find_spec(option):
        check(f"logger.{option}", mapping)
    else:
        with pytest.raises(EyasError, match=rf"needs the package {option}, .*: pip install {option}$"):
            check(f"logger.{option}", mapping)
