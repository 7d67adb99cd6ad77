"""Conversations, and the rows that each family makes of them, written by hand."""

# ruff: noqa: RUF001 (the full-width bars of DeepSeek)

from typing import Any

Messages = list[dict[str, Any]]

FUNCTION = {"name": "f", "arguments": {"a": 1}}
CALL = '{"name": "f", "arguments": {"a": 1}}'
LONG = "ab " * 1500 + "c"


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: str, reasoning: str | None = None) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return message if reasoning is None else {**message, "reasoning_content": reasoning}


CALLING = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": FUNCTION}]}
RESULT = {"role": "tool", "content": "7"}

CONVERSATIONS: dict[str, Messages] = {
    "single": [user("Hi"), answer("Yo")],
    "multi": [user("Hi"), answer("Yo"), user("Why?"), answer("So")],
    "system": [{"role": "system", "content": "Brief."}, user("Hi"), answer("Yo"), user("Why?"), answer("So")],
    "tool": [user("Hi"), CALLING, RESULT, answer("Yo")],
    "reasoning": [user("Hi"), answer("Yo", "hm")],
    "reasonings": [user("Hi"), answer("Yo", "hm"), user("Why?"), answer("So", "ah")],
    "reasoned_tool": [user("Hi"), {**CALLING, "reasoning_content": "hm"}, RESULT, answer("Yo", "ah")],
    "empty": [user("Hi"), answer("")],
    "long": [user("Hi"), answer(LONG), user("Why?"), answer("So")],
    "open": [user("Hi"), answer("Yo"), user("Why?")],
}

NO_THINKING: dict[str, Any] = {"enable_thinking": False}
THINKING: dict[str, Any] = {"thinking": True}

# family, conversation, template arguments, rows
EXPECTED: list[tuple[str, str, dict[str, Any], list[str]]] = []


def family(name: str, kwargs: dict[str, Any] | None = None, **rows: str | list[str]) -> None:
    EXPECTED.extend(
        (name, conversation, kwargs or {}, [expected] if isinstance(expected, str) else expected)
        for conversation, expected in rows.items()
    )


HEAD = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
NEXT = "\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
SYSTEM = "<|im_start|>system\nBrief.<|im_end|>\n"
family(
    "chatml",
    single=f"{HEAD}⟦Yo<|im_end|>⟧",
    multi=f"{HEAD}⟦Yo<|im_end|>⟧{NEXT}⟦So<|im_end|>⟧",
    system=f"{SYSTEM}{HEAD}⟦Yo<|im_end|>⟧{NEXT}⟦So<|im_end|>⟧",
    tool=f"{HEAD}⟦<tool_call>\n{CALL}\n</tool_call><|im_end|>⟧\n<|im_start|>tool\n7<|im_end|>\n<|im_start|>assistant\n⟦Yo<|im_end|>⟧",
    reasoning=f"{HEAD}⟦<think>\nhm\n</think>\n\nYo<|im_end|>⟧",
    reasonings=f"{HEAD}⟦<think>\nhm\n</think>\n\nYo<|im_end|>⟧{NEXT}⟦<think>\nah\n</think>\n\nSo<|im_end|>⟧",
    empty=f"{HEAD}⟦<|im_end|>⟧",
    long=f"{HEAD}⟦{LONG}<|im_end|>⟧{NEXT}⟦So<|im_end|>⟧",
    open=f"{HEAD}⟦Yo<|im_end|>⟧",
)
family(
    "marked",
    single=f"{HEAD}⟦Yo<|im_end|>⟧",
    multi=f"{HEAD}⟦Yo<|im_end|>⟧{NEXT}⟦So<|im_end|>⟧",
    system=f"{SYSTEM}{HEAD}⟦Yo<|im_end|>⟧{NEXT}⟦So<|im_end|>⟧",
    empty=f"{HEAD}⟦<|im_end|>⟧",
    long=f"{HEAD}⟦{LONG}<|im_end|>⟧{NEXT}⟦So<|im_end|>⟧",
)

HEAD, NEXT = "<|user|>\nHi<|end|>\n<|assistant|>\n", "\n<|user|>\nWhy?<|end|>\n<|assistant|>\n"
family(
    "phi",
    single=f"{HEAD}⟦Yo<|end|>⟧",
    multi=f"{HEAD}⟦Yo<|end|>⟧{NEXT}⟦So<|end|>⟧",
    system=f"<|system|>\nBrief.<|end|>\n{HEAD}⟦Yo<|end|>⟧{NEXT}⟦So<|end|>⟧",
    empty=f"{HEAD}⟦<|end|>⟧",
    long=f"{HEAD}⟦{LONG}<|end|>⟧{NEXT}⟦So<|end|>⟧",
    open=f"{HEAD}⟦Yo<|end|>⟧",
)

ROLE = "<|start_header_id|>assistant<|end_header_id|>\n\n"
HEAD = f"<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>{ROLE}"
NEXT = f"<|start_header_id|>user<|end_header_id|>\n\nWhy?<|eot_id|>{ROLE}"
BOS = "<|begin_of_text|>"
family(
    "llama3",
    single=f"{BOS}{HEAD}⟦Yo<|eot_id|>⟧",
    multi=f"{BOS}{HEAD}⟦Yo<|eot_id|>⟧{NEXT}⟦So<|eot_id|>⟧",
    system=f"{BOS}<|start_header_id|>system<|end_header_id|>\n\nBrief.<|eot_id|>{HEAD}⟦Yo<|eot_id|>⟧{NEXT}⟦So<|eot_id|>⟧",
    tool=f"{BOS}{HEAD}⟦{CALL}<|eot_id|>⟧<|start_header_id|>ipython<|end_header_id|>\n\n7<|eot_id|>{ROLE}⟦Yo<|eot_id|>⟧",
    empty=f"{BOS}{HEAD}⟦<|eot_id|>⟧",
    long=f"{BOS}{HEAD}⟦{LONG}<|eot_id|>⟧{NEXT}⟦So<|eot_id|>⟧",
    open=f"{BOS}{HEAD}⟦Yo<|eot_id|>⟧",
)

HEAD, NEXT = "<s>[INST] Hi [/INST]", "<s>[INST] Why? [/INST]"
family(
    "llama2",
    single=f"{HEAD}⟦ Yo </s>⟧",
    multi=f"{HEAD}⟦ Yo </s>⟧{NEXT}⟦ So </s>⟧",
    system=f"<s>[INST] <<SYS>>\nBrief.\n<</SYS>>\n\nHi [/INST]⟦ Yo </s>⟧{NEXT}⟦ So </s>⟧",
    empty=f"{HEAD}⟦  </s>⟧",
    long=f"{HEAD}⟦ {LONG} </s>⟧{NEXT}⟦ So </s>⟧",
    open=f"{HEAD}⟦ Yo </s>⟧",
)

HEAD, NEXT = "<s>[INST] Hi[/INST]", "[INST] Why?[/INST]"
family(
    "mistral",
    single=f"{HEAD}⟦ Yo</s>⟧",
    multi=f"{HEAD}⟦ Yo</s>⟧{NEXT}⟦ So</s>⟧",
    system=["<s>[INST] Brief.\n\nHi[/INST]⟦ Yo</s>⟧", f"{HEAD} Yo</s>[INST] Brief.\n\nWhy?[/INST]⟦ So</s>⟧"],
    tool=f"{HEAD}⟦[TOOL_CALLS] {CALL}</s>⟧[TOOL_RESULTS] 7[/TOOL_RESULTS]⟦ Yo</s>⟧",
    empty=f"{HEAD}⟦ </s>⟧",
    long=f"{HEAD}⟦ {LONG}</s>⟧{NEXT}⟦ So</s>⟧",
    open=f"{HEAD}⟦ Yo</s>⟧",
)

HEAD = "<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n"
NEXT = "\n<start_of_turn>user\nWhy?<end_of_turn>\n<start_of_turn>model\n"
family(
    "gemma",
    single=f"{HEAD}⟦Yo<end_of_turn>⟧",
    multi=f"{HEAD}⟦Yo<end_of_turn>⟧{NEXT}⟦So<end_of_turn>⟧",
    empty=f"{HEAD}⟦<end_of_turn>⟧",
    long=f"{HEAD}⟦{LONG}<end_of_turn>⟧{NEXT}⟦So<end_of_turn>⟧",
    open=f"{HEAD}⟦Yo<end_of_turn>⟧",
)

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
HEAD, NEXT = "<｜User｜>Hi<｜Assistant｜>", "<｜User｜>Why?<｜Assistant｜>"
TOOL = f"<｜tool▁calls▁begin｜>{CALL}<｜tool▁calls▁end｜>{EOS}"
OUTPUT = "<｜tool▁output▁begin｜>7<｜tool▁output▁end｜>"
family(
    "deepseek",
    single=f"{BOS}{HEAD}⟦Yo{EOS}⟧",
    multi=f"{BOS}{HEAD}⟦Yo{EOS}⟧{NEXT}⟦So{EOS}⟧",
    system=f"{BOS}Brief.{HEAD}⟦Yo{EOS}⟧{NEXT}⟦So{EOS}⟧",
    tool=f"{BOS}{HEAD}⟦{TOOL}⟧{OUTPUT}⟦Yo{EOS}⟧",
    empty=f"{BOS}{HEAD}⟦{EOS}⟧",
    long=f"{BOS}{HEAD}⟦{LONG}{EOS}⟧{NEXT}⟦So{EOS}⟧",
    open=f"{BOS}{HEAD}⟦Yo{EOS}⟧",
)
family(
    "deepseek",
    THINKING,
    single=f"{BOS}{HEAD}<think>⟦</think>Yo{EOS}⟧",
    reasoning=f"{BOS}{HEAD}<think>⟦hm</think>Yo{EOS}⟧",
    reasonings=[f"{BOS}{HEAD}<think>⟦hm</think>Yo{EOS}⟧", f"{BOS}{HEAD}Yo{EOS}{NEXT}<think>⟦ah</think>So{EOS}⟧"],
    reasoned_tool=[
        f"{BOS}{HEAD}<think>⟦hm</think>{TOOL}⟧",
        f"{BOS}{HEAD}{TOOL}{OUTPUT}<think>⟦ah</think>Yo{EOS}⟧",
    ],
)

ROLE = "<|im_assistant|>assistant<|im_middle|><think>"
HEAD = f"<|im_user|>user<|im_middle|>Hi<|im_end|>{ROLE}"
NEXT = f"<|im_user|>user<|im_middle|>Why?<|im_end|>{ROLE}"
TOOL = f"<|tool_calls_section_begin|>{CALL}<|tool_calls_section_end|><|im_end|>"
OUTPUT = f"<|im_system|>tool<|im_middle|>7<|im_end|>{ROLE}"
family(
    "kimi",
    single=f"{HEAD}⟦</think>Yo<|im_end|>⟧",
    multi=f"{HEAD}⟦</think>Yo<|im_end|>⟧{NEXT}⟦</think>So<|im_end|>⟧",
    system=f"<|im_system|>system<|im_middle|>Brief.<|im_end|>{HEAD}⟦</think>Yo<|im_end|>⟧{NEXT}⟦</think>So<|im_end|>⟧",
    tool=f"{HEAD}⟦</think>{TOOL}⟧{OUTPUT}⟦</think>Yo<|im_end|>⟧",
    reasoning=f"{HEAD}⟦hm</think>Yo<|im_end|>⟧",
    reasonings=f"{HEAD}⟦hm</think>Yo<|im_end|>⟧{NEXT}⟦ah</think>So<|im_end|>⟧",
    reasoned_tool=f"{HEAD}⟦hm</think>{TOOL}⟧{OUTPUT}⟦ah</think>Yo<|im_end|>⟧",
    empty=f"{HEAD}⟦</think><|im_end|>⟧",
    long=f"{HEAD}⟦</think>{LONG}<|im_end|>⟧{NEXT}⟦</think>So<|im_end|>⟧",
    open=f"{HEAD}⟦</think>Yo<|im_end|>⟧",
)

# The next turn's role token is what stops the verifier; nothing tells it where the conversation ends.
HEAD, NEXT = "[gMASK]<sop><|user|>\nHi<|assistant|>\n", "\nWhy?<|assistant|>\n"
TOOL = f"<tool_call>{CALL}</tool_call><|observation|>"
family(
    "glm",
    single=f"{HEAD}⟦Yo⟧",
    multi=f"{HEAD}⟦Yo<|user|>⟧{NEXT}⟦So⟧",
    system=f"[gMASK]<sop><|system|>\nBrief.<|user|>\nHi<|assistant|>\n⟦Yo<|user|>⟧{NEXT}⟦So⟧",
    tool=f"{HEAD}⟦{TOOL}⟧\n7<|assistant|>\n⟦Yo⟧",
    reasoning=f"{HEAD}⟦<think>hm</think>\nYo⟧",
    reasonings=[f"{HEAD}⟦<think>hm</think>\nYo<|user|>⟧", f"{HEAD}Yo<|user|>{NEXT}⟦<think>ah</think>\nSo⟧"],
    reasoned_tool=f"{HEAD}⟦<think>hm</think>\n{TOOL}⟧\n7<|assistant|>\n⟦<think>ah</think>\nYo⟧",
    empty=f"{HEAD}",
    long=f"{HEAD}⟦{LONG}<|user|>⟧{NEXT}⟦So⟧",
    open=f"{HEAD}⟦Yo<|user|>⟧",
)

HEAD = "<|start|>user<|message|>Hi<|end|><|start|>assistant"
NEXT = "<|start|>user<|message|>Why?<|end|><|start|>assistant"
SYSTEM = "<|start|>developer<|message|>Brief.<|end|>"
ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
TOOL = f"<|channel|>commentary to=f<|message|>{CALL}<|call|>"
OUTPUT = "<|start|>f to=assistant<|channel|>commentary<|message|>7<|end|><|start|>assistant"
family(
    "harmony",
    single=f"{HEAD}⟦{FINAL}Yo<|return|>⟧",
    multi=[f"{HEAD}⟦{FINAL}Yo<|return|>⟧", f"{HEAD}{FINAL}Yo<|end|>{NEXT}⟦{FINAL}So<|return|>⟧"],
    system=[f"{SYSTEM}{HEAD}⟦{FINAL}Yo<|return|>⟧", f"{SYSTEM}{HEAD}{FINAL}Yo<|end|>{NEXT}⟦{FINAL}So<|return|>⟧"],
    tool=f"{HEAD}⟦{TOOL}⟧{OUTPUT}⟦{FINAL}Yo<|return|>⟧",
    reasoning=f"{HEAD}⟦{ANALYSIS}hm<|end|><|start|>assistant{FINAL}Yo<|return|>⟧",
    reasonings=[
        f"{HEAD}⟦{ANALYSIS}hm<|end|><|start|>assistant{FINAL}Yo<|return|>⟧",
        f"{HEAD}{FINAL}Yo<|end|>{NEXT}⟦{ANALYSIS}ah<|end|><|start|>assistant{FINAL}So<|return|>⟧",
    ],
    reasoned_tool=[
        f"{HEAD}⟦{ANALYSIS}hm<|end|><|start|>assistant{TOOL}⟧",
        f"{HEAD}{TOOL}{OUTPUT}⟦{ANALYSIS}ah<|end|><|start|>assistant{FINAL}Yo<|return|>⟧",
    ],
    empty=f"{HEAD}⟦{FINAL}<|return|>⟧",
    long=[f"{HEAD}⟦{FINAL}{LONG}<|return|>⟧", f"{HEAD}{FINAL}{LONG}<|end|>{NEXT}⟦{FINAL}So<|return|>⟧"],
    open=f"{HEAD}⟦{FINAL}Yo<|return|>⟧",
)

HEAD = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
NEXT = "\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
SYSTEM = "<|im_start|>system\nBrief.<|im_end|>\n"
NONE = "<think>\n\n</think>\n\n"
TOOL = f"<tool_call>\n{CALL}\n</tool_call><|im_end|>"
OUTPUT = "\n<|im_start|>user\n<tool_response>\n7\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
family(
    "qwen3",
    single=f"{HEAD}⟦{NONE}Yo<|im_end|>⟧",
    reasoning=f"{HEAD}⟦<think>\nhm\n</think>\n\nYo<|im_end|>⟧",
    reasonings=[
        f"{HEAD}⟦<think>\nhm\n</think>\n\nYo<|im_end|>⟧",
        f"{HEAD}Yo<|im_end|>{NEXT}⟦<think>\nah\n</think>\n\nSo<|im_end|>⟧",
    ],
    reasoned_tool=f"{HEAD}⟦<think>\nhm\n</think>\n\n{TOOL}⟧{OUTPUT}⟦<think>\nah\n</think>\n\nYo<|im_end|>⟧",
)
family(
    "qwen3",
    NO_THINKING,
    single=f"{HEAD}{NONE}⟦Yo<|im_end|>⟧",
    multi=[f"{HEAD}{NONE}⟦Yo<|im_end|>⟧", f"{HEAD}Yo<|im_end|>{NEXT}{NONE}⟦So<|im_end|>⟧"],
    system=[f"{SYSTEM}{HEAD}{NONE}⟦Yo<|im_end|>⟧", f"{SYSTEM}{HEAD}Yo<|im_end|>{NEXT}{NONE}⟦So<|im_end|>⟧"],
    tool=[f"{HEAD}{NONE}⟦{TOOL}⟧", f"{HEAD}{TOOL}{OUTPUT}{NONE}⟦Yo<|im_end|>⟧"],
    empty=f"{HEAD}{NONE}⟦<|im_end|>⟧",
    long=[f"{HEAD}{NONE}⟦{LONG}<|im_end|>⟧", f"{HEAD}{LONG}<|im_end|>{NEXT}{NONE}⟦So<|im_end|>⟧"],
    open=f"{HEAD}{NONE}⟦Yo<|im_end|>⟧",
)

HEAD, NEXT = "]~!b[]~b]user\nHi[e~[\n]~b]ai\n", "\n]~b]user\nWhy?[e~[\n]~b]ai\n"
TOOL, OUTPUT = f"<invoke>{CALL}</invoke>[e~[", "\n]~b]tool\n7[e~[\n]~b]ai\n"
family(
    "minimax",
    reasoning=f"{HEAD}<think>\n⟦hm\n</think>\n\nYo[e~[⟧",
    reasonings=[
        f"{HEAD}<think>\n⟦hm\n</think>\n\nYo[e~[⟧",
        f"{HEAD}Yo[e~[{NEXT}<think>\n⟦ah\n</think>\n\nSo[e~[⟧",
    ],
    reasoned_tool=f"{HEAD}<think>\n⟦hm\n</think>\n\n{TOOL}⟧{OUTPUT}<think>\n⟦ah\n</think>\n\nYo[e~[⟧",
)

HEAD = "<|start_of_role|>user<|end_of_role|>Hi<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>"
NEXT = "\n<|start_of_role|>user<|end_of_role|>Why?<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>"
OUTPUT = "\n<|start_of_role|>tool_response<|end_of_role|>7<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>"
HELP, SYSTEM = (f"<|start_of_role|>system<|end_of_role|>{text}<|end_of_text|>\n" for text in ("Help.", "Brief."))
family(
    "granite",
    single=f"{HELP}{HEAD}⟦Yo<|end_of_text|>⟧",
    multi=f"{HELP}{HEAD}⟦Yo<|end_of_text|>⟧{NEXT}⟦So<|end_of_text|>⟧",
    system=f"{SYSTEM}{HEAD}⟦Yo<|end_of_text|>⟧{NEXT}⟦So<|end_of_text|>⟧",
    tool=f"{HELP}{HEAD}⟦<|tool_call|>[{CALL}]<|end_of_text|>⟧{OUTPUT}⟦Yo<|end_of_text|>⟧",
    empty=f"{HELP}{HEAD}⟦<|end_of_text|>⟧",
    long=f"{HELP}{HEAD}⟦{LONG}<|end_of_text|>⟧{NEXT}⟦So<|end_of_text|>⟧",
    open=f"{HELP}{HEAD}⟦Yo<|end_of_text|>⟧",
)

TURN, EOT, BOS = "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<BOS_TOKEN>"
HEAD = f"{TURN}<|USER_TOKEN|>Hi{EOT}{TURN}<|CHATBOT_TOKEN|>"
NEXT = f"{TURN}<|USER_TOKEN|>Why?{EOT}{TURN}<|CHATBOT_TOKEN|>"
TOOL = f"<|START_ACTION|>{CALL}<|END_ACTION|>{EOT}"
OUTPUT = f"{TURN}<|SYSTEM_TOKEN|><|START_TOOL_RESULT|>7<|END_TOOL_RESULT|>{EOT}{TURN}<|CHATBOT_TOKEN|>"
HM, AH = "<|START_THINKING|>hm<|END_THINKING|>", "<|START_THINKING|>ah<|END_THINKING|>"
family(
    "command",
    single=f"{BOS}{HEAD}⟦Yo{EOT}⟧",
    multi=f"{BOS}{HEAD}⟦Yo{EOT}⟧{NEXT}⟦So{EOT}⟧",
    system=f"{BOS}{TURN}<|SYSTEM_TOKEN|>Brief.{EOT}{HEAD}⟦Yo{EOT}⟧{NEXT}⟦So{EOT}⟧",
    tool=f"{BOS}{HEAD}⟦{TOOL}⟧{OUTPUT}⟦Yo{EOT}⟧",
    reasoning=f"{BOS}{HEAD}⟦{HM}Yo{EOT}⟧",
    reasonings=f"{BOS}{HEAD}⟦{HM}Yo{EOT}⟧{NEXT}⟦{AH}So{EOT}⟧",
    reasoned_tool=f"{BOS}{HEAD}⟦{HM}{TOOL}⟧{OUTPUT}⟦{AH}Yo{EOT}⟧",
    empty=f"{BOS}{HEAD}⟦{EOT}⟧",
    long=f"{BOS}{HEAD}⟦{LONG}{EOT}⟧{NEXT}⟦So{EOT}⟧",
    open=f"{BOS}{HEAD}⟦Yo{EOT}⟧",
)
