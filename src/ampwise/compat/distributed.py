# pyright: reportPrivateImportUsage=false
"""What ampwise knows of torch.distributed's private side: shards, and who reduces what."""

import sys
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

_PLAIN = (Tensor, torch.nn.Parameter)
GradBucket = dist.GradBucket
"""What a communication hook of DistributedDataParallel is given; torch asks for this very annotation."""
Group = Any
"""A ``torch.distributed.ProcessGroup``; a torch without distributed has none."""


def is_running() -> bool:
    """Whether this process trains together with others."""
    return world_size() > 1


def is_started() -> bool:
    """Whether there are ranks at all, though it be one: its parameters may be shards."""
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """This process's place among those that train together; 0 where it trains alone."""
    return dist.get_rank() if is_started() else 0


def world_size() -> int:
    """How many processes train together; 1 where this one trains alone."""
    return dist.get_world_size() if is_started() else 1


def store_at(host: str, port: int, *, prefix: str) -> Any:
    """The store that is served there; keys are kept apart from others' by the prefix."""
    return dist.PrefixStore(prefix, dist.TCPStore(host, port, is_master=False))


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is a DTensor, of which this rank holds a part or a copy."""
    if type(tensor) in _PLAIN:
        return False
    module = sys.modules.get("torch.distributed.tensor")  # where nobody imported it there is no DTensor
    return module is not None and isinstance(tensor, module.DTensor)


def local_of(tensor: Tensor) -> Tensor:
    """The part of a DTensor that this rank holds, sharing its memory; any other tensor is its own."""
    if not is_sharded(tensor):
        return tensor
    with torch.no_grad():
        local = tensor.to_local()  # pyright: ignore[reportAttributeAccessIssue] - DTensor's
        return local.wait() if hasattr(local, "wait") else local


def reduced(gradient: Tensor) -> Tensor:
    """A DTensor gradient whose parts are still to be summed over ranks, summed; any other as it is."""
    if not is_sharded(gradient):
        return gradient
    from torch.distributed.tensor import Replicate

    placements = gradient.placements  # pyright: ignore[reportAttributeAccessIssue]
    if not any(one.is_partial() for one in placements):
        return gradient
    whole = [Replicate() if one.is_partial() else one for one in placements]
    return gradient.redistribute(placements=whole)  # pyright: ignore[reportAttributeAccessIssue]


def num_shards(tensor: Tensor) -> int:
    """Into how many parts a DTensor is cut, copies not counted; 1 for any other tensor."""
    if not is_sharded(tensor):
        return 1
    count = 1
    mesh, placements = tensor.device_mesh, tensor.placements  # pyright: ignore[reportAttributeAccessIssue]
    for dim, placement in enumerate(placements):
        if not placement.is_replicate() and not placement.is_partial():
            count *= mesh.size(dim)
    return count


def groups_of_meshes(tensors: Iterable[Tensor]) -> tuple[Group, ...] | None:
    """Groups over which one reduction after the other reaches every rank that holds a part of these DTensors.

    None where there are DTensors on meshes that nothing joins; empty where there is no DTensor.
    """
    meshes = {one.device_mesh for one in tensors if is_sharded(one)}  # pyright: ignore[reportAttributeAccessIssue]
    roots = {mesh._get_root_mesh() for mesh in meshes}
    if any(root.size() == dist.get_world_size() for root in roots):
        return (dist.group.WORLD,)
    if len(roots) > 1:
        return None
    return tuple(root.get_group(dim) for root in roots for dim in range(root.ndim))


def is_fsdp1(param: Tensor) -> bool:
    """Whether ``FullyShardedDataParallel``, FSDP's first form, holds it."""
    return bool(getattr(param, "_fsdp_flattened", False))


def fsdp1_groups(modules: Iterable[Module]) -> tuple[list[Group], bool]:
    """The groups over which FSDP's first form cuts these models, and whether it cuts them at all."""
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    wrapped = [one for module in modules for one in FullyShardedDataParallel.fsdp_modules(module)]
    cuts = any(one.sharding_strategy is not ShardingStrategy.NO_SHARD for one in wrapped) if wrapped else True
    return list({id(one.process_group): one.process_group for one in wrapped}.values()), cuts


def ddp_of(modules: Iterable[Module]) -> list[DistributedDataParallel]:
    """The DistributedDataParallel among these models and within them."""
    return [one for module in modules for one in module.modules() if isinstance(one, DistributedDataParallel)]


def ignored_by(ddp: DistributedDataParallel) -> list[Tensor]:
    """Parameters whose gradients DistributedDataParallel leaves to each rank."""
    names = ddp.parameters_to_ignore
    return [param for name, param in ddp.module.named_parameters() if name in names]


def group_of(ddp: DistributedDataParallel) -> Group:
    """The ranks over which it averages gradients."""
    return ddp.process_group


def size_of(group: Group | None) -> int:
    """How many ranks are in it; None is all."""
    return dist.get_world_size(group)
