"""What an estimate's process is told to do: one value, handed down as JSON."""

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

from ampwise.runner.script import Target

OWN: Final = "own"
"""What the precision of a script is called that chooses it by itself, whatever was asked for."""
GPUS_PER_NODE: Final = 8
"""What a process of many sees of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """The GPU that is imagined."""

    name: str
    compute_capability: tuple[int, int] | None
    """NVIDIA's; None for a GPU of another make."""
    total_bytes: int
    context_bytes: int
    """What the CUDA context and loaded kernels take outside of the allocator."""

    @property
    def capacity_bytes(self) -> int:
        """What is left to the allocator."""
        return max(0, self.total_bytes - self.context_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One run of a script on an imaginary GPU."""

    target: Target
    gpu: GpuSpec
    precision: str
    """As the user wrote it."""
    compute: str
    """``fp32``, ``tf32``, ``bf16`` or ``fp16``; a script's own mixed precision is left to it."""
    plan: str | None = None
    """A plan as TOML, whose rules hold beside it."""
    world_size: int | None = None
    """How many processes train together, of which one is imagined; None leaves it to the script."""
    num_steps: int = 2
    """The optimizer's state is made at the end of the first step, so that two show all of a step."""
    expandable_segments: bool = False
    has_remedies: bool = True
    """Say what to change where it does not fit."""
    scratch: str
    """Where what the script saves would go."""
    result: str
    """Where the estimate goes."""
    reason: str
    """Where is written why there is none."""
    time_limit_s: float = 120.0
    """How long the script may take to its second step."""

    def to_json(self) -> str:
        """The order as one argument of a command line."""
        return json.dumps(asdict(self))


def order_from_json(text: str) -> Order:
    """The order that ``to_json`` wrote."""
    fields: dict[str, Any] = json.loads(text)
    target, gpu = fields.pop("target"), fields.pop("gpu")
    capability = gpu.pop("compute_capability")
    return Order(
        target=Target(path=target["path"], module=target["module"], argv=tuple(target["argv"])),
        gpu=GpuSpec(**gpu, compute_capability=None if capability is None else (capability[0], capability[1])),
        **fields,
    )
