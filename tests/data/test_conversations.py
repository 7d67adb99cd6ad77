from pathlib import Path

import pytest

from eyas.data.conversations import conversations_file, read_conversations
from eyas.errors import EyasError

GOOD = '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}'


def read(tmp_path: Path, *lines: str):  # type: ignore[no-untyped-def]
    file = tmp_path / "data.jsonl"
    file.write_text("\n".join(lines))
    return list(read_conversations(file))


def test_both_names_of_the_turns(tmp_path: Path) -> None:
    first, second = read(
        tmp_path, GOOD, "", GOOD.replace("messages", "conversations").replace("]}", '], "finish": "length"}')
    )
    assert first.messages == second.messages
    assert (first.cut, second.cut) == (False, True)
    assert second.where.endswith("data.jsonl:3")


BAD = [
    pytest.param('{"messages": [', "not valid JSON", id="broken"),
    pytest.param('["messages"]', "expected an object with `messages`", id="list"),
    pytest.param('{"text": "x"}', "expected an object with `messages`", id="other-keys"),
    pytest.param('{"messages": []}', "expected an object with `messages`", id="empty"),
    pytest.param('{"messages": [{"role": "user", "content": "Hi"}]}', "no assistant turn", id="no-assistant"),
    pytest.param('{"messages": [{"role": "assistant", "content": null}]}', "expected each turn as", id="null-content"),
    pytest.param('{"messages": [{"role": "gpt", "content": "x"}]}', "expected each turn as", id="role"),
    pytest.param('{"messages": ["x"]}', "expected each turn as", id="no-turn"),
]


@pytest.mark.parametrize(("line", "message"), BAD)
def test_problems_name_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(EyasError, match=message) as error:
        read(tmp_path, GOOD, line)
    assert "data.jsonl:2" in str(error.value)


def test_bad_utf8(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_bytes(b'{"messages": [{"role": "assistant", "content": "\xff\xfe"}]}')
    with pytest.raises(EyasError, match=r"data\.jsonl:1: not valid JSON"):
        list(read_conversations(file))


def test_missing_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(EyasError, match="there is no such file"):
        conversations_file(str(tmp_path / "nope.jsonl"))
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(EyasError, match="the file is empty"):
        conversations_file(str(tmp_path / "empty.jsonl"))
    assert conversations_file("conf:data/demo.jsonl").exists()
