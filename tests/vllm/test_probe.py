"""`eyas doctor serve=true`: is what vLLM serves the verifier that transformers computes?"""

import json
from pathlib import Path

import pytest

from eyas.cli.compose import compose
from eyas.config import Config
from eyas.data.prepare import prepare
from eyas.errors import EyasError
from eyas.evaluation.probe import probe
from eyas.stages import probe_file
from served import Served


def configured(served: Served, verifier: Path, outputs: Path) -> Config:
    """As the command line of the doctor would be, with its tokens."""
    config = compose(
        [
            *("verifier=tiny_llama", f"verifier.path={verifier}", f"outputs={outputs}", "data.num_processes=1"),
            *("serve=true", "evaluation.dtype=float32", "draft.layer_ids=[1,2,3]"),
            *("server=endpoints", f"server.endpoints=[{served.server.endpoints[0]}]"),
        ],
        [],
    )
    prepare(config)
    return config


def test_transformers_computes_what_is_served(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configured(served, served.checkpoint.directory, tmp_path)
    probe(config)
    found = "transformers computes the same verifier (0.000"
    assert found in capsys.readouterr().out
    assert found in probe_file(config).read_text()


def test_another_rotary_base_is_noticed(served: Served, tmp_path: Path) -> None:
    """The same weights, which vLLM turns by other angles than the checkpoint's config says."""
    verifier = tmp_path / "verifier"
    verifier.mkdir()
    for file in served.checkpoint.directory.iterdir():
        (verifier / file.name).write_bytes(file.read_bytes())
    stated = json.loads((verifier / "config.json").read_text())
    stated["rope_parameters"]["rope_theta"] = 500000.0
    (verifier / "config.json").write_text(json.dumps(stated))
    config = configured(served, verifier, tmp_path / "outputs")
    with pytest.raises(
        EyasError, match=r"^vLLM and transformers compute different verifiers: .* differ by [0-9.]+ nats"
    ):
        probe(config)
    assert not probe_file(config).exists()
