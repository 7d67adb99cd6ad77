"""Questions -> the verifier's own answers: the responses stage.

Run as `python -m eyas.data.responses CONFIG`. A draft learns what *this* verifier says, so answers by others are replaced:
turn by turn, each with the new answers before it; or, where those that are there are its own, new ones added to them. A shard
is a fixed part of the conversations, written whole, so that a killed stage goes on after its last one.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from eyas.artifact import building, complete, write_file
from eyas.config import Config, load_config
from eyas.data.conversations import Conversation
from eyas.data.mixture import mixed
from eyas.data.schema import GenerationConfig, Responses
from eyas.errors import EyasError
from eyas.process import child_main
from eyas.progress import Progress
from eyas.serving.canary import check
from eyas.serving.client import Request, send
from eyas.serving.server import Server, serving
from eyas.stages import canary_file, may_be_unanswered, responses_artifact
from eyas.verifier.locate import locate

CONVERSATIONS_PER_SHARD = 4096
"""The last answers of a shard run with little company, so it is large."""


@dataclass
class Talk:
    """One conversation as it is answered anew."""

    original: Conversation
    number: int
    """Counts samples, too: with the seed it determines what is sampled."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    finish: str = ""
    num_answers: int = 0

    @classmethod
    def kept(cls, original: Conversation) -> "Talk":
        """With the answers that are there."""
        return cls(original, 0, original.messages, "length" if original.cut else "")

    def ask(self) -> bool:
        """Take over the turns before the next answer; false where nothing more is to be answered."""
        rest = self.original.messages[len(self.messages) :]
        upto = next((i for i, message in enumerate(rest) if message["role"] == "assistant"), None)
        # After a tool call of its own the verifier would need a result that nobody can give.
        called = any(message["role"] == "tool" for message in rest[: upto or 0]) and self.num_answers > 0
        if self.finish == "length" or upto is None or called:
            return False
        self.messages += rest[:upto]
        return True

    def hear(self, choice: dict[str, Any]) -> None:
        """Take the verifier's answer."""
        said = choice["message"]
        kept = {key: said[key] for key in ("content", "reasoning_content", "reasoning", "tool_calls") if said.get(key)}
        self.messages.append({"role": "assistant", "content": "", **kept})
        self.finish = str(choice["finish_reason"])
        self.num_answers += 1

    def row(self) -> str:
        """The line of the conversations file; a last question that was not answered is left out."""
        last = max(i for i, message in enumerate(self.messages) if message["role"] == "assistant")
        values: dict[str, Any] = {"messages": self.messages[: last + 1], "where": self.original.where}
        if self.original.tools:
            values["tools"] = self.original.tools
        if self.finish == "length":
            values["finish"] = "length"
        return json.dumps(values, ensure_ascii=False) + "\n"


def generate(config: Config) -> None:
    """Write the responses artifact, unless it exists.

    Raises:
        EyasError: no server, a server of another model, or data without conversations.
    """
    artifact = responses_artifact(config)
    with building(artifact) as partial:
        if partial is None:
            return
        counts: Counter[str] = Counter()
        checkpoint = locate(config.verifier)
        with serving(config.server, config.verifier, checkpoint, log=artifact.store / "generate.log") as server:
            check(server, canary_file(config))
            progress = Progress("generate", None, "answers")
            for number, part in enumerate(_parts(config, counts)):
                if config.data.responses is Responses.add:
                    write_file(partial / f"kept-{number:05d}.jsonl", "".join(Talk.kept(it).row() for it in part))
                file = partial / f"responses-{number:05d}.jsonl"
                if not file.exists():
                    talks = _sampled(part, number, config.generation.samples)
                    write_file(file, "".join(talk.row() for talk in _answered(server, config, talks, progress)))
        finishes = Counter("length" if json.loads(line).get("finish") else "stop" for line in _lines(partial))
        complete(artifact, partial, {**counts, "answered": finishes.total(), "cut_answers": finishes["length"]})


def _parts(config: Config, counts: Counter[str]) -> Iterator[list[Conversation]]:
    """The conversations, in shards."""

    def conversations() -> Iterator[Conversation]:
        for _, example in mixed(config.data, counts, unanswered=may_be_unanswered(config)):
            if not isinstance(example, Conversation):
                raise EyasError(f"{example.where}: nothing to answer, expected a conversation: set data.responses=keep")
            yield example

    rest = conversations()
    while part := list(islice(rest, CONVERSATIONS_PER_SHARD)):
        yield part


def _sampled(part: list[Conversation], number: int, samples: int) -> list[Talk]:
    """The conversations of shard `number`, each as often as it is sampled."""
    first = number * CONVERSATIONS_PER_SHARD * samples
    return [Talk(part[index // samples], first + index) for index in range(len(part) * samples)]


def _answered(server: Server, config: Config, talks: list[Talk], progress: Progress) -> list[Talk]:
    """Every turn of every conversation: all the first ones, then all the second ones, ..."""
    while asking := [index for index, talk in enumerate(talks) if talk.ask()]:
        requests = (Request(index, "/v1/chat/completions", _body(config, talks[index])) for index in asking)
        for answer in send(server, requests):
            talks[answer.key].hear(answer.body["choices"][0])
            progress.advance(1)
    return [talk for talk in talks if talk.num_answers]


def _body(config: Config, talk: Talk) -> dict[str, Any]:
    settings: GenerationConfig = config.generation
    body: dict[str, Any] = {
        "messages": talk.messages,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "max_tokens": settings.max_tokens,
        "seed": settings.seed + talk.number,
    }
    if talk.original.tools:
        body["tools"] = talk.original.tools
    if config.verifier.chat.kwargs:
        body["chat_template_kwargs"] = config.verifier.chat.kwargs
    if config.verifier.stop_token_ids is not None:
        body["stop_token_ids"] = config.verifier.stop_token_ids
    return body


def _lines(directory: Path) -> Iterator[str]:
    for file in sorted(directory.glob("responses-*.jsonl")):
        with file.open() as stream:
            yield from stream


def main(config_file: Path) -> None:
    generate(load_config(config_file))


if __name__ == "__main__":
    child_main(main)
