"""Every server YAML is right, and what can't be is refused in a line."""

import pytest

from eyas.errors import EyasError
from served import server_config


@pytest.mark.parametrize("name", ["local", "endpoints", "cpu"])
def test_yaml_is_complete(name: str) -> None:
    assert server_config(name).retries >= 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tensor_parallel": 0}, "server.tensor_parallel=0: must be at least 1"),
        ({"startup_timeout": 0}, "server.startup_timeout=0.0: must be a positive number of seconds"),
        ({"retries": -1}, "server.retries=-1"),
        ({"port": 70000}, "server.port=70000"),
        ({"memory_share": 1.5}, "server.memory_share=1.5"),
        ({"max_length": 0}, "server.max_length=0"),
        ({"command": []}, "server.command is empty"),
        ({"gpus": [0, 1]}, "expected 1 different GPUs"),
        ({"gpus": [0, 0], "tensor_parallel": 2}, "expected 2 different GPUs"),
        ({"endpoints": []}, "server.endpoints is empty"),
        ({"endpoints": ["node1:8000"]}, "'node1:8000' is no address"),
        ({"endpoints": ["http://node1:8000/v1"]}, "(without /v1)"),
        ({"endpoints": ["http://a:1", "http://a:1/"]}, "one address stands there twice"),
    ],
)
def test_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(EyasError) as error:
        server_config(**changes)
    assert said in str(error.value)
