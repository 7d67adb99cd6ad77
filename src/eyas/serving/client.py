"""Many requests to one or several endpoints: bounded in flight, lost ones sent again, answers as they come."""

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import httpx

from eyas.errors import EyasError
from eyas.serving.endpoint import failure, headers, said
from eyas.serving.server import Server

REST_SECONDS = 5.0
"""An endpoint that lost a request is asked last for so long."""

DEATH_SECONDS = 10.0
"""So long after a connection broke, the server's end is known."""

LOST_STATUS = {408, 425, 429}
"""Besides 5xx: the server could not, this time. Every other 4xx says that the request is wrong."""


@dataclass(frozen=True)
class Request:
    """A body for `path`, such as /v1/completions; the model's name is filled in."""

    key: Any
    """Comes back with the answer."""
    path: str
    body: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What the server made of the request with this key."""

    key: Any
    body: dict[str, Any]


def send(server: Server, requests: Iterable[Request]) -> Iterator[Answer]:
    """Yield the answers as they come, in any order; `requests` is read only as fast as they are sent.

    Raises:
        EyasError: the server refuses a request (a wrong setting: stops at once), or one was lost too often.
        ServerDiedError: the server that Eyas started is gone; what was not yielded has no answer.
    """
    sender = _Sender(server)
    remaining = iter(requests)
    limit = server.config.max_in_flight * len(server.endpoints)
    in_flight: set[asyncio.Task[Answer]] = set()
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        try:
            while True:
                in_flight |= {loop.create_task(sender.answer(r)) for r in islice(remaining, limit - len(in_flight))}
                if not in_flight:
                    return
                done, in_flight = runner.run(_first(in_flight))
                errors = [error for task in done if (error := task.exception())]
                if errors:
                    raise errors[0]
                for task in done:
                    yield task.result()
        finally:
            for task in in_flight:
                task.cancel()
            runner.run(sender.client.aclose())


def complete(server: Server, prompts: Sequence[list[int]], **settings: Any) -> list[dict[str, Any]]:
    """What the server makes of each prompt's token ids (the first choice), in the order of the prompts."""
    requests = [Request(number, "/v1/completions", {"prompt": ids, **settings}) for number, ids in enumerate(prompts)]
    choices = {answer.key: answer.body["choices"][0] for answer in send(server, requests)}
    return [choices[number] for number in range(len(prompts))]


async def _first(tasks: set[asyncio.Task[Answer]]) -> tuple[set[asyncio.Task[Answer]], set[asyncio.Task[Answer]]]:
    return await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


@dataclass
class _Endpoint:
    url: str
    in_flight: int = 0
    rests_until: float = 0.0


class _Sender:
    def __init__(self, server: Server) -> None:
        self.server = server
        self.endpoints = [_Endpoint(url) for url in server.endpoints]
        self.client = httpx.AsyncClient(
            headers=headers(),
            timeout=None,  # `_ask` bounds the whole request
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=False,  # a proxy for the internet must not stand between us and a server of our own
        )

    async def answer(self, request: Request) -> Answer:
        retries = self.server.config.retries
        for attempt in range(retries + 1):
            if attempt:
                await asyncio.sleep(min(2.0 ** (attempt - 1), 30.0))
                self.server.check()
            now = time.monotonic()
            endpoint = min(self.endpoints, key=lambda one: (one.rests_until > now, one.in_flight))
            body, lost = await self._ask(endpoint, request)
            if body is not None:
                return Answer(request.key, body)
            if endpoint.rests_until <= now and attempt < retries:
                print(f"server   {endpoint.url} lost request {request.key} ({lost}); sent again", flush=True)
            endpoint.rests_until = time.monotonic() + REST_SECONDS
        await self._see_whether_it_died()
        raise EyasError(
            f"{endpoint.url}: request {request.key} was lost {retries + 1} times (the last time: {lost}), which is all that "
            "server.retries allows; look into the server's log, or raise server.request_timeout"
        )

    async def _ask(self, endpoint: _Endpoint, request: Request) -> tuple[dict[str, Any] | None, str]:
        """(the answer, "") or (None, why the request was lost).

        Raises:
            EyasError: the server says that the request is wrong.
        """
        seconds = self.server.config.request_timeout
        endpoint.in_flight += 1
        try:
            async with asyncio.timeout(seconds):
                response = await self.client.post(
                    endpoint.url + request.path, json={"model": self.server.model, **request.body}
                )
            if response.is_success:
                return response.json(), ""
        except TimeoutError:
            return None, f"no answer in server.request_timeout={seconds:g} seconds"
        except httpx.TransportError as error:
            return None, failure(error)
        except ValueError:
            return None, "an answer that is no JSON"
        finally:
            endpoint.in_flight -= 1
        reason = f"HTTP {response.status_code}: {said(response)}"
        if response.status_code < 500 and response.status_code not in LOST_STATUS:
            raise EyasError(f"{endpoint.url}{request.path} refuses request {request.key}: {reason}")
        return None, reason

    async def _see_whether_it_died(self) -> None:
        """A server's connections break some seconds before its last process is gone."""
        deadline = time.monotonic() + (DEATH_SECONDS if self.server.is_local else 0)
        while time.monotonic() < deadline and not await self._is_well():
            self.server.check()
            await asyncio.sleep(0.2)
        self.server.check()

    async def _is_well(self) -> bool:
        with suppress(httpx.TransportError):
            return (await self.client.get(self.server.endpoints[0] + "/health", timeout=1.0)).is_success
        return False
