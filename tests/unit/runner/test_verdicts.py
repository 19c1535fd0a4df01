import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

from ampwise.runner.verdicts import any_found, non_finite_in


@pytest.fixture
def mesh():
    dist.init_process_group("fake", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("bad", [None, 0, 1])
def test_shards_are_looked_at_beside_plain_gradients_and_no_other_rank_is_asked(mesh, bad):
    gradients = [torch.ones(2), torch.ones(3)]
    if bad is not None:
        gradients[bad][0] = float("inf")
    gradients[0] = distribute_tensor(gradients[0], mesh, [Replicate()])
    assert any_found(non_finite_in(gradients)) is (bad is not None)
