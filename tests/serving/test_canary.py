"""What the canary compares, on endpoints of a few lines; real weights are in tests/vllm."""

from pathlib import Path
from typing import Any

import pytest

from eyas.errors import EyasError
from eyas.serving.canary import PROMPTS, TOLERANCE, check, record
from served import endpoints, http_server


def answering(shift: float = 0.0, token: int = 7) -> Any:
    """An endpoint whose log-probabilities are all `shift` from -1."""

    def answer(_: str, body: dict[str, Any]) -> tuple[int, Any]:
        number = PROMPTS.index(body["prompt"]) + 2
        entries = [None, *[{str(token): {"logprob": -1.0 + shift, "rank": 1}}] * number]
        return 200, {"choices": [{"prompt_logprobs": entries}]}

    return http_server(answer)


def test_recorded_once_and_compared(tmp_path: Path) -> None:
    file = tmp_path / "store" / "canary.json"
    with answering() as first, answering(TOLERANCE * 0.9) as near, answering(TOLERANCE * 1.1) as far:
        check(endpoints(first), file)
        written = file.read_text()
        check(endpoints(first, near), file)
        with pytest.raises(EyasError, match=rf"^{far} serves as model something else .* other weights, an adapter or"):
            check(endpoints(first, far), file)
        assert file.read_text() == written
        assert [len(row) for row in record(endpoints(first))[0].tokens] == [2, 3, 4]


def test_another_tokenizer(tmp_path: Path) -> None:
    with answering() as first, answering(token=8) as other:
        check(endpoints(first), tmp_path / "canary.json")
        with pytest.raises(EyasError, match="another tokenizer"):
            check(endpoints(other), tmp_path / "canary.json")


def test_two_endpoints_differ_before_anything_is_recorded(tmp_path: Path) -> None:
    with answering() as first, answering(1.0) as other, pytest.raises(EyasError, match=f"^{other} serves"):
        check(endpoints(first, other), tmp_path / "canary.json")
    assert not (tmp_path / "canary.json").exists()
