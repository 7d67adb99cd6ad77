import pytest
import torch
from small import SHAPE, rms_teacher

from eyas.verifier.teacher import Teacher


@pytest.fixture
def teacher() -> Teacher:
    """A random verifier's norm and head."""
    generator = torch.Generator().manual_seed(5)
    size = SHAPE.hidden_size
    return rms_teacher(
        torch.rand(size, generator=generator) + 0.5, torch.randn(96, size, generator=generator) * 0.5, 1e-5
    )
