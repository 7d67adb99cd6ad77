"""The serve probe, before step 1: can the draft that will be trained be served beside its verifier?

Run as `python -m eyas.evaluation.probe CONFIG`. The untrained draft is written as it will be exported and served; what it
learns changes nothing of whether vLLM loads it, drafts with it, and still says what the verifier says.
"""

import json
import math
import tempfile
from collections import Counter
from functools import reduce
from itertools import islice
from operator import add
from pathlib import Path
from typing import cast

import torch
from torch import nn

from eyas.artifact import write_file
from eyas.capture.tap import load_verifier
from eyas.config import Config, load_config
from eyas.data.conversations import Conversation
from eyas.data.mixture import deal
from eyas.data.rows import RowMaker
from eyas.data.server_render import ServerRenderer, render_by_ids
from eyas.data.spans import RefusedError
from eyas.data.tokens import Tokens
from eyas.doctor.model_checks import dtype_that_fits
from eyas.draft.build import build_draft
from eyas.draft.export import save
from eyas.errors import EyasError
from eyas.evaluation.report import NEAR_TIE
from eyas.process import child_main
from eyas.serving.canary import PROMPTS, Canary, check, difference, read
from eyas.serving.client import complete
from eyas.serving.command import draft_args
from eyas.serving.metrics import speculation
from eyas.serving.server import Server, serving
from eyas.stages import answered_data, canary_file, probe_file, tokens_artifact
from eyas.verifier.locate import locate
from eyas.verifier.schema import Renderer
from eyas.verifier.tokenizer import load_tokenizer

NUM_PROMPTS = 2
NUM_TOKENS = 32
NUM_CONVERSATIONS = 20
TOP = 20
ENGINES_TOLERANCE = 0.1
"""Nats per token; the same weights in two engines and types differed by 0.04."""


def probe(config: Config) -> None:
    """Serve the untrained draft, once for each way of serving it.

    Raises:
        EyasError: vLLM doesn't load it, ignores it, or says something else with it than the verifier alone.
    """
    file = probe_file(config)
    if file.exists() and not config.serve:
        print(f"probe    passed before: {file}", flush=True)
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    dtype = config.evaluation.dtype.name
    with tempfile.TemporaryDirectory(prefix="eyas-probe-") as directory:
        draft = build_draft(config)
        draft.attach()
        cast(nn.Module, draft).to(getattr(torch, dtype))
        save(draft, Path(directory))
        args = ["--dtype", dtype, "--enable-scale-out", *draft_args(directory, config.evaluation.k)]
        log = file.with_suffix(".log")
        with serving(config.server, config.verifier, locate(config.verifier), log=log, args=args) as server:
            check(server, canary_file(config))
            found = [check_output(config, server), check_rendering(config, server)]
    if config.serve:
        found.append(check_transformers(config))
    write_file(file, json.dumps(found) + "\n")
    for line in found:
        print(f"probe    {line}", flush=True)


def check_output(config: Config, server: Server) -> str:
    """With the draft, the server says what the verifier alone prefers, token by token.

    The verifier alone is the same server reading what was said: a prompt is read without drafting.

    Raises:
        EyasError: nothing is drafted, or a token is not the verifier's choice.
    """
    dtype = config.evaluation.dtype.name
    prompts = Tokens(tokens_artifact(config).directory).held_out_prompts()[:NUM_PROMPTS]
    said = complete(server, prompts, temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, return_token_ids=True)
    answers = [choice["token_ids"] for choice in said]
    if server.is_local and not reduce(add, map(speculation, server.metrics())).num_drafts:
        raise EyasError(
            f"the vLLM server of {server.model} drafted nothing: it ignores the draft, or this verifier has no EAGLE-3 support "
            f"there (verifier.vllm.eagle3: false says so); its log: {server.log}"
        )
    whole = [[*prompt, *answer] for prompt, answer in zip(prompts, answers, strict=True)]
    for number, choice in enumerate(complete(server, whole, temperature=0, max_tokens=1, prompt_logprobs=TOP)):
        start = len(prompts[number])
        for position, entry in enumerate(choice["prompt_logprobs"][start:]):
            token = whole[number][start + position]
            best = max(float(said["logprob"]) for said in entry.values())
            gap = best - float(entry[str(token)]["logprob"])
            if gap > NEAR_TIE[dtype]:
                raise EyasError(
                    f"with the draft the server says another token than the verifier alone prefers (prompt {number}, token "
                    f"{position}, by {gap:.3g} nats, where {NEAR_TIE[dtype]} is a near-tie in {dtype}): this vLLM does not "
                    "verify drafts of this model rightly"
                )
    drafts = "vLLM drafts with it" if server.is_local else "not served with it: the server isn't ours"
    return f"{drafts}; {len(answers)} outputs of {NUM_TOKENS} tokens are the verifier's own choice"


def check_rendering(config: Config, server: Server) -> str:
    """The server reads a conversation as the token ids that are trained.

    Raises:
        EyasError: other ids.
    """
    if config.verifier.chat.renderer is Renderer.server or not server.is_local:
        return "the server renders" if server.is_local else "rendering not compared: the server isn't ours"
    make, ask = RowMaker(config), ServerRenderer(server, config.verifier.chat.kwargs)
    examples = (it.example for it in deal(answered_data(config), Counter()))
    talks = [it for it in islice(examples, NUM_CONVERSATIONS) if isinstance(it, Conversation)]
    compared = 0
    for talk in talks:
        try:
            ours = make.rendered(talk)
        except RefusedError:
            continue
        if max(len(row.input_ids) for row in ours) > (config.server.max_length or math.inf):
            continue  # what is served is shorter than what is trained: its users' choice
        theirs = render_by_ids(ask, talk, make.stop_ids, last_turn_only=config.data.last_turn_only)
        compared += 1
        for a, b in zip(ours, theirs, strict=False):
            if a.input_ids != b.input_ids:
                where = next((i for i, (x, y) in enumerate(zip(a.input_ids, b.input_ids, strict=False)) if x != y), -1)
                near = [str(make.tokenizer.decode(row.input_ids[max(where - 4, 0) : where + 4])) for row in (a, b)]
                raise EyasError(
                    f"{talk.where}: the server reads other token ids than are trained, from token {where} on: {near[1]!r} there, "
                    f"{near[0]!r} here; another template, template arguments or tokenizer is served: give the server "
                    "verifier.chat's, or set verifier.chat.renderer=server"
                )
    return f"{compared} conversations are read by the server as the token ids that are trained"


@torch.inference_mode()
def check_transformers(config: Config) -> str:
    """transformers and vLLM compute the same verifier: the canary's prompts have the same log-probabilities in both.

    A wrong kernel in the server is seen by nothing else here: its states and its logits agree with each other.

    Raises:
        EyasError: they differ by more than arithmetic.
    """
    checkpoint = locate(config.verifier)
    dtype = dtype_that_fits(config, checkpoint)
    if dtype is None:
        return "the verifier is too large to be compared with transformers here"
    recorded, tokenizer = read(canary_file(config)), load_tokenizer(config.verifier, checkpoint)
    device = torch.device(config.trainer.accelerator.name)
    model = load_verifier(checkpoint, config.verifier, dtype, device, config.capture.device_map)
    tokens, logprobs = [], []
    for prompt in PROMPTS:
        ids_1T = torch.tensor([tokenizer(prompt)["input_ids"]], device=device)
        logits_TV = model(input_ids=ids_1T).logits[0, :-1].float()
        tokens.append(ids_1T[0, 1:].tolist())
        logprobs.append(logits_TV.log_softmax(-1).gather(1, ids_1T[0, 1:, None])[:, 0].tolist())
    distance = difference(recorded, Canary(tokens, logprobs))
    if distance > ENGINES_TOLERANCE:
        raise EyasError(
            f"vLLM and transformers compute different verifiers: on fixed prompts their log-probabilities differ by "
            f"{distance:.3f} nats per token, where {ENGINES_TOLERANCE} is the most that arithmetic explains; a wrong kernel, "
            "quantisation or checkpoint is served: compare both with a known answer before you train on either"
        )
    return f"transformers computes the same verifier ({distance:.4f} nats per token on the canary's prompts)"


def main(config_file: Path) -> None:
    config = load_config(config_file)
    try:
        probe(config)
    except EyasError as error:
        if not config.evaluation.allow_unservable:
            raise EyasError(f"{error} (evaluation.allow_unservable=true trains it all the same)") from None
        print(f"probe    warning: {error}", flush=True)


if __name__ == "__main__":
    child_main(main)
