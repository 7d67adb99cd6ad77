"""Many requests over real HTTP servers that answer, refuse, fail, or never answer."""

import itertools
import re
import socket
import threading
import time
from collections import Counter
from typing import Any

import pytest

from eyas.errors import EyasError
from eyas.serving.client import Request, send
from served import endpoints, http_server


def requests(number: int) -> list[Request]:
    return [Request(index, "/v1/completions", {"prompt": str(index)}) for index in range(number)]


def echo(_: str, body: dict[str, Any]) -> tuple[int, Any]:
    return 200, {"model": body["model"], "text": body["prompt"]}


def test_every_answer_with_its_key() -> None:
    with http_server(echo) as url:
        answers = {answer.key: answer.body for answer in send(endpoints(url), requests(40))}
    assert answers == {index: {"model": "model", "text": str(index)} for index in range(40)}


def test_load_is_spread_and_bounded() -> None:
    lock, now, most, seen = threading.Lock(), Counter[int](), Counter[int](), Counter[int]()

    def slow(number: int) -> Any:
        def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
            with lock:
                now[number] += 1
                seen[number] += 1
                most[number] = max(most[number], now[number])
            time.sleep(0.02)
            with lock:
                now[number] -= 1
            return echo(path, body)

        return answer

    with http_server(slow(0)) as first, http_server(slow(1)) as second:
        answers = list(send(endpoints(first, second, max_in_flight=4), requests(80)))
    assert len(answers) == 80
    assert max(most.values()) <= 4
    assert min(seen.values()) >= 25


def test_requests_are_read_as_they_are_sent() -> None:
    read = 0

    def endless() -> Any:
        nonlocal read
        for index in itertools.count():
            read += 1
            yield Request(index, "/v1/completions", {"prompt": ""})

    with http_server(echo) as url:
        answers = send(endpoints(url, max_in_flight=4), endless())
        assert len([*itertools.islice(answers, 10)]) == 10
        answers.close()
    assert read <= 20


def test_a_wrong_request_stops_at_once() -> None:
    calls = Counter[str]()

    def refuse(path: str, _: dict[str, Any]) -> tuple[int, Any]:
        calls[path] += 1
        return 400, {"error": {"message": "This model's maximum context length\nis 512 tokens."}}

    with (
        http_server(refuse) as url,
        pytest.raises(
            EyasError,
            match=re.escape("refuses request 0: HTTP 400: This model's maximum context length is 512 tokens."),
        ),
    ):
        list(send(endpoints(url, max_in_flight=1), requests(50)))
    assert calls.total() == 1


def test_lost_requests_are_sent_again(capsys: pytest.CaptureFixture[str]) -> None:
    calls = Counter[str]()

    def once(path: str, body: dict[str, Any]) -> tuple[int, Any] | None:
        calls[body["prompt"]] += 1
        if calls[body["prompt"]] > 1:
            return echo(path, body)
        return None if body["prompt"] == "0" else (503, {"error": {"message": "overloaded"}})

    with http_server(once) as url:
        answers = {answer.key for answer in send(endpoints(url, request_timeout=0.5), requests(4))}
    assert answers == {0, 1, 2, 3}
    assert set(calls.values()) == {2}
    assert "(HTTP 503: overloaded); sent again" in capsys.readouterr().out


def test_one_that_never_answers_ends_its_budget() -> None:
    def all_but_one(path: str, body: dict[str, Any]) -> tuple[int, Any] | None:
        return None if body["prompt"] == "3" else echo(path, body)

    answers = []
    started = time.monotonic()
    with (
        http_server(all_but_one) as url,
        pytest.raises(
            EyasError, match=r"request 3 was lost 2 times \(the last time: no answer in server.request_timeout=0.3"
        ),
    ):
        answers.extend(send(endpoints(url, request_timeout=0.3, retries=1), requests(8)))
    assert time.monotonic() - started < 10


def test_connection_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(EyasError, match=r"request 0 was lost 2 times \(the last time: connection refused\)"):
        list(send(endpoints(url, retries=1), requests(1)))


def test_one_endpoint_of_two_is_down() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        down = f"http://127.0.0.1:{closed.getsockname()[1]}"
    with http_server(echo) as url:
        answers = list(send(endpoints(down, url, max_in_flight=4), requests(40)))
    assert len(answers) == 40
