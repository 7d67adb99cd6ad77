"""What the plan says beside the memory of a device: rows of (what, how much, remark)."""

from eyas.capture.schema import CaptureEngine
from eyas.config import Config
from eyas.data.report import plural
from eyas.draft.shape import Shape
from eyas.plan.amounts import Work, checkpoint_bytes, states_bytes, token_bytes, training_rate
from eyas.plan.fit import serves
from eyas.plan.report import gb, time_row
from eyas.plan.step import StepMemory
from eyas.stages import num_capture_workers
from eyas.training.schema import Accelerator

Rows = list[tuple[str, str, str]]


def draft_rows(config: Config, shape: Shape, memory: StepMemory) -> Rows:
    """Parameters, and what they follow from."""
    heads = f"{shape.num_attention_heads} heads of {shape.head_dim}, {shape.num_key_value_heads} key-value heads"
    layers = f"{plural(config.draft.num_layers, 'layer')} of {shape.hidden_size:,}"
    vocabulary = f"vocabulary {shape.draft_vocab_size:,} of {shape.verifier_vocab_size:,}"
    copies = "" if config.trainer.devices * config.trainer.num_nodes == 1 else ", whole on each device"
    head = "" if config.draft.trainable_head else ", head"
    return [
        (
            "trained",
            f"{memory.trained:,}",
            f"{layers}, {heads}, feed-forward {shape.intermediate_size:,}, {vocabulary}",
        ),
        ("frozen", f"{memory.frozen:,}", f"embedding{head} and the teacher's norm and heads{copies}"),
    ]


def machine_rows(config: Config, memory: StepMemory, total: int, weights: int | None) -> Rows:
    """What a machine has beside its devices, and what else wants them."""
    rows: Rows = []
    processes = config.trainer.devices
    if config.trainer.accelerator is Accelerator.cuda:
        here = -(-config.training.rows_per_step // (processes * config.trainer.num_nodes))
        of = f"{processes} process{'es' if processes > 1 else ''} of {gb(memory.loading.total)}"
        waiting = 2 * here * processes * memory.row_bytes
        rows.append(
            (
                "host memory, loading",
                gb(processes * memory.loading.total),
                f"{of}, until step 1 ({memory.loading.moment})",
            )
        )
        rows.append(("host memory, rows", gb(waiting), f"this step's and the next one's, {gb(memory.row_bytes)} each"))
    elif processes > 1:
        rows.append(("all processes", gb(processes * total), f"{processes} on this machine"))
    if serves(config):
        gpus = config.server.tensor_parallel * config.server.data_parallel
        share = f"{config.server.memory_share:.0%} of {plural(gpus, 'GPU')}" if config.server.memory_share else "CPU"
        when = "is gone before the training starts, and starts again after it: nothing is shared"
        if config.capture.online:
            there = (
                "shares its memory"
                if config.server.gpus is None
                else f"has GPUs {config.server.gpus}, the training others"
            )
            when = f"runs beside the training and {there}"
        size = "" if weights is None else f"; the verifier's weights are {gb(weights)}"
        rows.append(("vLLM", share, f"{when}{size}"))
    elif config.server.endpoints is not None and config.capture.engine is CaptureEngine.vllm:
        rows.append(("vLLM", "elsewhere", ", ".join(config.server.endpoints)))
    elif config.capture.engine is CaptureEngine.transformers and weights is not None:
        rows.append(("verifier, in the capture", gb(weights), f"{_capturing(config)}, gone before the training"))
    return rows


def _capturing(config: Config) -> str:
    """Where transformers has the verifier while it captures."""
    if config.capture.device_map is not None:
        return f"over all devices (capture.device_map={config.capture.device_map}) of one process of transformers"
    number = num_capture_workers(config)
    return "in a process of transformers" if number == 1 else f"in each of {number} processes of transformers"


def data_rows(config: Config, shape: Shape, todo: Work, memory: StepMemory) -> Rows:
    """Tokens, steps and disk."""
    training, per_token = config.training, token_bytes(config, shape)
    num_devices = config.trainer.devices * config.trainer.num_nodes
    rows_here = f"{training.rows_per_step / num_devices:g} on each device"
    dealt = f"{plural(training.rows_per_step, 'row')} of {training.row_length:,} tokens a step, {rows_here}"
    length = (
        "training.max_steps"
        if training.epochs is None
        else f"{training.epochs:g} pass{'es' if training.epochs != 1 else ''}"
    )
    tokens = ("tokens", "not known" if todo.tokens is None else f"{todo.tokens:,}", todo.source)
    rows = [tokens, ("steps", "not known" if todo.steps is None else f"{todo.steps:,}", f"{length}; {dealt}")]
    if todo.trained_tokens is not None:
        rows.append(("tokens in all steps", f"{todo.trained_tokens:,}", ""))
    if config.capture.engine is CaptureEngine.files:
        rows.append(("disk, states", "0 MB", f"they stay where they are: {config.capture.path}"))
    elif todo.tokens is None:
        rows.append(("disk, states", gb(per_token * 10**6), f"per million tokens: {per_token:,} bytes a token"))
    else:
        kept = f", keep={config.capture.keep.name}" if config.capture.online else ""
        rows.append(
            ("disk, states", gb(states_bytes(config, shape, todo.tokens)), f"{per_token:,} bytes a token{kept}")
        )
    saved, keep = gb(memory.saved_bytes), training.keep_last + training.keep_best
    rows.append(
        (
            "disk, checkpoints",
            gb(checkpoint_bytes(config, memory)),
            f"{keep} that stay and one that is written, {saved} each",
        )
    )
    return rows


def time_rows(config: Config, todo: Work) -> Rows:
    """Capture and training, at speeds that somebody stated or measured."""
    plan, trained = config.plan, training_rate(config)
    state = "state plan.training_tokens_per_second, or plan.like=outputs/NAME (a run that measured it)"
    rows = (
        []
        if trained is None
        else [time_row("training", todo.trained_tokens, trained.tokens_per_second, trained.source)]
    )
    rows = rows or [time_row("training", None, None, state)]
    if config.capture.engine is CaptureEngine.files:
        return rows
    speed = plan.capture_tokens_per_second
    source = "state plan.capture_tokens_per_second" if speed is None else "plan.capture_tokens_per_second"
    beside = " (beside the training)" if config.capture.online else ""
    return [time_row(f"capture{beside}", todo.tokens, speed, source), *rows]
