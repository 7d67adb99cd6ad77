"""What of a configuration may leave the machine."""

from pathlib import Path

import pytest

from eyas.disclosure import REMOVED, disclosed

SECRETS = [
    {"HF_TOKEN": "x"},
    {"WANDB_API_KEY": "x"},
    {"apikey": "x"},
    {"db_password": "x"},
    {"AWS_SECRET_ACCESS_KEY": "x"},
    {"AWS_ACCESS_KEY_ID": "x"},
    {"server.env.OPENAI_API_KEY": "x"},
    {"note": "hf_abcdefghijklmnopqrstuvwx"},
    {"note": "sk-abcdefghijklmnopqrst"},
    {"url": "https://me:hunter22@host/path"},
    {"header": "Bearer abcdefgh1234"},
]


@pytest.mark.parametrize("values", SECRETS)
def test_secrets_are_removed_wherever_they_stand(values: dict[str, str]) -> None:
    [key] = values
    assert disclosed({"server": {"env": values}}) == {"server": {"env": {key: REMOVED}}}


def test_secrets_among_a_commands_words() -> None:
    words = ["--api-key", "abc", "--port", "8000", "--api-key=abc", "--chat-template=/home/me/x.jinja"]
    assert disclosed(words) == [
        "--api-key",
        REMOVED,
        "--port",
        "8000",
        f"--api-key={REMOVED}",
        "--chat-template=x.jinja",
    ]


def test_what_is_no_secret_stays() -> None:
    values = {
        "tokens": "7070",
        "tokens_per_shard": 16384,
        "keys": {"head": ["lm_head.weight"], "prefix": ""},
        "stop_token_ids": [1, 2],
        "max_tokens": 20,
        "config_keys": [],
        "token": None,
        "name": "task_sk_with_a_rather_long_name-hf_short",
        "num_key_value_heads": "auto",
    }
    assert disclosed(values) == values


def test_paths_are_relative_or_their_last_part() -> None:
    here = Path.cwd()
    values = {"path": str(here / "data" / "x.jsonl"), "draft": "/models/secret-project/draft", "hub": "org/model"}
    assert disclosed(values) == {"path": "data/x.jsonl", "draft": "draft", "hub": "org/model"}
    assert disclosed(f"[{Path.home()}/a, {here}/b]") == "[.../a, .../b]"
    assert disclosed("sqlite:////srv/mlflow.db") == "sqlite:////srv/mlflow.db"
