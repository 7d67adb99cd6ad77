"""Counters read from a page as vLLM writes it."""

import math

from eyas.serving.metrics import SpeculationCounts, speculation, total

PAGE = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="a, \\"b\\" {c}"} 10.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 30.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 80.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 20.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 5.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 10.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="m",position="0"} 5.0
process_start_time_seconds 1.79e+09
"""


def test_speculation() -> None:
    counts = speculation(PAGE)
    assert counts == SpeculationCounts(40, 20, (15, 5))
    assert counts.tau == 1.5
    assert counts - SpeculationCounts(20, 15, (10,)) == SpeculationCounts(20, 5, (5, 5))
    assert counts + SpeculationCounts(1, 1, (1,)) == SpeculationCounts(41, 21, (16, 5))


def test_without_speculation() -> None:
    assert total(PAGE, "no_such") == 0
    assert total(PAGE, "process_start_time_seconds") == 1.79e9
    assert math.isnan(speculation("").tau)
