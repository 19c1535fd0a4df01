"""What a process that runs somebody's script is told to do: one value, handed down as JSON."""

from dataclasses import dataclass
from enum import StrEnum

from ampwise.plan.plan import Lists


class Malloc(StrEnum):
    """How the CPU allocator treats large tensors."""

    AUTO = "auto"
    """Tuned on a CPU, unless the user set or replaced the allocator."""
    TUNED = "tuned"
    SYSTEM = "system"


class Amp(StrEnum):
    """What becomes of mixed precision in a run that is made to find a fault."""

    KEPT = "kept"
    UNSCALED = "unscaled"
    """No loss is scaled, whoever asks for it."""
    OFF = "off"
    """Nor does any autocast take effect, the script's own included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """One run of a script: in which precision, for how long, with what measured and where it is written."""

    precision: str = "auto"
    """``auto`` or a format's name."""
    emulate: str | None = None
    """A format's name: compute as if this CPU had its hardware. It is then the precision too."""
    plan: str | None = None
    """A plan as TOML, whose rules hold beside the precision, which is its default."""
    rules_stay: bool = False
    """The plan's rules hold in a script with its own mixed precision too: a run made to find a fault."""
    lists: Lists = Lists.CUDA
    amp: Amp = Amp.KEPT
    malloc: Malloc = Malloc.AUTO
    device: str | None = None
    """``cpu``, ``cuda:1``; None leaves the current device."""
    compile: bool = False
    """Compile the outermost modules (``+compile``)."""
    stop_after: int | None = None
    """Optimizer steps after which the run ends; None lets it finish."""
    evaluates: bool = False
    """The script makes no training step: its model's forward passes without gradients are counted."""
    repeat: int = 0
    """Added to every seed the script sets or would have had, so that repeats differ and variants do not."""
    memory_step: int | None = None
    """Index of the step whose storages are counted."""
    rehearse: str | None = None
    """A plan as TOML, which is tried on one module at a time and measured; the run itself stays as it is."""
    rehearse_emulated: str | None = None
    """The format that is emulated meanwhile."""
    instruments: tuple[str, ...] = ()
    """What else the run is watched with, by the names of ``runner/instruments``; each fills its part of the record."""
    nvtx: bool = False
    """Mark steps, passes, modules and casts as NVTX ranges for Nsight Systems."""
    scratch: str | None = None
    """Folder to which what the script saves is redirected; None leaves its files to it."""
    record: str | None = None
    """Where the run's record goes."""
    progress: str | None = None
    """Where a line goes at each step's end, for a progress bar."""
    parts: str | None = None
    """Folder where each process of the run leaves what it did; its processes share one choice of precision there."""
    store: str | None = None
    """The store of the ranks that make this run together, as ``host:port/prefix``."""
    summary: bool = True
    """Print the closing summary to stderr."""

    @property
    def variant(self) -> str:
        """As a user writes it: ``bf16+compile``, ``emulated fp16``."""
        name = self.precision if self.emulate is None else f"emulated {self.emulate}"
        return f"{name}+compile" if self.compile else name
