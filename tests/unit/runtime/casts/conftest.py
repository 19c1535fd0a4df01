"""What the tests of casts share."""

import pytest
import torch


@pytest.fixture
def x():
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
