"""What a PrecisionScheduler saves of trainings that a low format loses, and how much of them stays in the low format.

Small residual nets on made-up data whose training is unstable: a large learning rate, bad batches at known steps, or an
outlier in every batch from some step on. Each is trained by every seed several times from the same weights on the same
batches: in fp32, in the low format alone, by a PrecisionScheduler, by one that moves fp16 to bf16, and by one with the
plain rule of an absolute loss curvature. fp16 and fp8 are emulated, so the numbers are those of hardware that has them.
Counts, not times: they are the same under load.

A run has diverged if its loss on held-out data, computed in fp32, is not finite or above half of what it was before
training; if its last twenty steps were all skipped, or their mean loss is above half of what guessing the mean gives:
then training has ended, whatever the weights are worth.
"""

import argparse
import json
import math
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from _common import OUT
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

import ampwise
from ampwise.adapt.scheduler import DEFAULT_TRIGGERS
from ampwise.runtime.scaling.overflow import HopelessOverflowError

STEPS = 200
FILE = OUT / "scheduler.json"
FIRST_SEED = 100
"""None of these was looked at when the defaults were chosen."""
MODES = ("fp32", "low", "scheduled", "to bf16", "plain rule")
LARGEST = 65504.0
"""In fp16."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A training that is unstable."""

    name: str
    emulated: str
    plan: str
    optimizer: str
    lr: float
    momentum: float = 0.9
    classifies: bool = False
    bad_inputs: tuple[int, ...] = ()
    bad_targets: tuple[int, ...] = ()
    size: float = 1.0
    """What inputs or targets are multiplied by in those steps."""
    outlier: float = 1.0
    """What one example of each batch is multiplied by, from ``outlier_from`` on."""
    outlier_from: int = 60
    begins_up: int = 0
    """So many steps a scheduler begins with in fp32."""

    @property
    def modes(self) -> tuple[str, ...]:
        """How it is trained."""
        return tuple(one for one in MODES if one != "to bf16" or self.plan == "fp16")


def _outliers(name: str, emulated: str, optimizer: str, **changed: Any) -> Task:
    return Task(
        name=name,
        emulated=emulated,
        plan="bf16",
        optimizer=optimizer,
        lr={"adam": 0.01, "sgd": 0.05}[optimizer],
        outlier={"fp8_e4m3": 1e6, "fp8_e5m2": 1e10}[emulated],
        **changed,
    )


TASKS = (
    Task(name="fp16, rate 0.5, regression", emulated="fp16", plan="fp16", optimizer="adam", lr=0.5),
    Task(name="fp16, rate 0.5, classes", emulated="fp16", plan="fp16", optimizer="adam", lr=0.5, classifies=True),
    Task(name="fp16, rate 1, regression", emulated="fp16", plan="fp16", optimizer="adam", lr=1.0),
    Task(
        name="fp16, rate 0.3, bad inputs",
        emulated="fp16",
        plan="fp16",
        optimizer="adam",
        lr=0.3,
        bad_inputs=(60, 61, 62, 120, 121, 122),
        size=1e4,
    ),
    Task(
        name="fp16, bad targets",
        emulated="fp16",
        plan="fp16",
        optimizer="sgd",
        lr=0.05,
        bad_targets=(100,),
        size=1e3,
    ),
    Task(
        name="fp8, rate 0.2, momentum 0.95",
        emulated="fp8_e4m3",
        plan="bf16",
        optimizer="sgd",
        lr=0.2,
        momentum=0.95,
    ),
    Task(
        name="fp8, rate 0.1, bad inputs",
        emulated="fp8_e4m3",
        plan="bf16",
        optimizer="sgd",
        lr=0.1,
        bad_inputs=(60, 61, 120, 121),
        size=100.0,
    ),
    Task(
        name="fp8 e5m2, rate 0.2, momentum 0.95",
        emulated="fp8_e5m2",
        plan="bf16",
        optimizer="sgd",
        lr=0.2,
        momentum=0.95,
    ),
    _outliers("fp8 e4m3, outliers, regression", "fp8_e4m3", "sgd"),
    _outliers("fp8 e4m3, outliers, classes", "fp8_e4m3", "adam", classifies=True),
    _outliers("fp8 e4m3, outliers from the start", "fp8_e4m3", "adam", outlier_from=0),
    _outliers("fp8 e4m3, the same, begun in fp32", "fp8_e4m3", "adam", outlier_from=0, begins_up=30),
    _outliers("fp8 e5m2, outliers, regression", "fp8_e5m2", "adam"),
    _outliers("fp8 e5m2, outliers, classes", "fp8_e5m2", "sgd", classifies=True),
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one run ended."""

    task: str
    mode: str
    seed: int
    loss: float
    untrained: float
    num_last_skipped: int
    low_share: float
    num_switches: int
    guessed: float
    """The loss of whoever guesses the mean."""
    last_loss: float
    """The mean of the last twenty steps."""
    beyond: float
    """In which share of the work the results were larger than fp16 holds."""

    @property
    def has_diverged(self) -> bool:
        """See the head of this file."""
        is_lost = not math.isfinite(self.loss) or self.loss > self.untrained / 2
        return is_lost or self.num_last_skipped >= 20 or not self.last_loss <= self.guessed / 2


class Block(nn.Module):
    """A residual block as transformers have them."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wi, self.wo = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what the block makes of ``x``."""
        return x + self.wo(torch.relu(self.wi(self.norm(x))))


class Net(nn.Module):
    """Three blocks between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(8, 32)
        self.blocks = nn.ModuleList(Block(32, 64) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Four numbers for each of ``x``'s rows."""
        x = self.inp(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def batches(task: Task, teacher: nn.Module, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The first is held out."""
    generator = torch.Generator().manual_seed(seed)
    for step in range(-1, STEPS):
        x = torch.randn(256 if step < 0 else 64, 8, generator=generator)
        with torch.no_grad():
            y = teacher(x)
        if step >= task.outlier_from:
            x[0] *= task.outlier
        yield x * (task.size if step in task.bad_inputs else 1.0), y * (task.size if step in task.bad_targets else 1.0)


def criterion(task: Task) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The loss."""
    return (lambda out, y: F.cross_entropy(out, y.argmax(1))) if task.classifies else F.mse_loss


def guessing(task: Task, y: torch.Tensor) -> float:
    """The loss of whoever answers the same to every input, as well as can be."""
    if not task.classifies:
        return float(y.var(0, correction=0).mean())
    shares = torch.bincount(y.argmax(1), minlength=y.shape[1]) / len(y)
    return float(torch.special.entr(shares).sum())


class Beyond:
    """Counts the parts of a net whose results are larger than fp16 holds, weighed by their parameters."""

    def __init__(self, model: Net) -> None:
        self.num = self.total = 0
        for part in (model.inp, *model.blocks, model.head):
            part.register_forward_hook(self._count)

    def _count(self, part: nn.Module, _: Any, result: torch.Tensor) -> None:
        weight = sum(one.numel() for one in part.parameters())
        self.total += weight
        self.num += weight * (not float(result.detach().abs().max()) <= LARGEST)

    @property
    def share(self) -> float:
        """Of all."""
        return self.num / max(self.total, 1)


def scheduler(model: nn.Module, task: Task, mode: str) -> ampwise.PrecisionScheduler:
    """As a user makes it."""
    if mode == "to bf16":
        return ampwise.PrecisionScheduler(model, task.plan, safer="bf16")
    if mode == "plain rule":
        return ampwise.PrecisionScheduler(model, task.plan, triggers=[ampwise.AbsoluteLossCurvature()])
    begins = [ampwise.Schedule(steps=[(0, task.begins_up)])] if task.begins_up else []
    return ampwise.PrecisionScheduler(model, task.plan, triggers=[*DEFAULT_TRIGGERS, *begins])


def train(task: Task, mode: str, seed: int) -> Outcome:
    """One run."""
    torch.manual_seed(seed)
    first, last = nn.Linear(8, 16), nn.Linear(16, 4)
    teacher = nn.Sequential(first, nn.Tanh(), last)
    with torch.no_grad():
        last.weight.mul_(3)
    model, loss_of, data = Net(), criterion(task), batches(task, teacher, seed + 1)
    kind: Any = {"adam": torch.optim.AdamW, "sgd": torch.optim.SGD}[task.optimizer]
    optimizer = kind(model.parameters(), lr=task.lr, **({"momentum": task.momentum} if task.optimizer == "sgd" else {}))
    held_out = next(data)
    beyond = Beyond(model) if mode == "scheduled" else None
    losses: list[float] = []
    untrained = evaluated(model, loss_of, held_out)
    skipped: list[bool] = []
    with ExitStack() as stack:
        adaptive, scale = None, "none" if mode == "fp32" else "dynamic" if task.plan == "fp16" else 1.0
        if mode != "fp32":  # in the low format, steps with gradients that are not finite are skipped, as is usual
            stack.enter_context(ampwise.emulated(task.emulated))
        if mode == "low":
            stack.callback(ampwise.apply_plan(model, task.plan))
        elif mode != "fp32":
            adaptive = stack.enter_context(scheduler(model, task, mode))
        step = ampwise.TrainStep(optimizer, modules=[model], precision="fp32", loss_scale=scale)
        for x, y in data:
            with step.autocast():
                loss = loss_of(model(x), y)
            try:
                result = step(loss)
            except HopelessOverflowError:  # more of the same
                skipped += [True] * 20
                break
            skipped.append(result.skipped)
            losses.append(loss.item())
            if adaptive is not None:
                adaptive.step(loss, result)
        low_share = adaptive.low_share if adaptive else float(mode == "low")
        num_switches = len(adaptive.switches) if adaptive else 0
        share_beyond = beyond.share if beyond else 0.0
    return Outcome(
        task=task.name,
        mode=mode,
        seed=seed,
        loss=evaluated(model, loss_of, held_out),
        untrained=untrained,
        num_last_skipped=sum(skipped[-20:]),
        low_share=low_share,
        num_switches=num_switches,
        guessed=guessing(task, held_out[1]),
        last_loss=statistics.mean(losses[-20:]) if losses else math.inf,
        beyond=share_beyond,
    )


@torch.no_grad()
def evaluated(model: nn.Module, loss_of: Any, batch: tuple[torch.Tensor, torch.Tensor]) -> float:
    """The loss on held-out data, in fp32."""
    return float(loss_of(model(batch[0]), batch[1]))


def shown(outcomes: list[Outcome]) -> str:
    """A line of the table for each mode of a task."""
    lines: list[str] = []
    lost = {one.seed for one in outcomes if one.mode == "low" and one.has_diverged}
    kept = {one.seed for one in outcomes if one.mode == "fp32" and not one.has_diverged}
    for mode in dict.fromkeys(one.mode for one in outcomes):
        runs = [one for one in outcomes if one.mode == mode]
        finite = [one.loss for one in runs if math.isfinite(one.loss)]
        avoided = sum(one.seed in lost & kept and not one.has_diverged for one in runs)
        lines.append(
            f"| {runs[0].task} | {mode} | {sum(one.has_diverged for one in runs)} of {len(runs)} "
            f"| {avoided} of {len(lost & kept)} | {statistics.median(finite) if finite else math.nan:.3g} "
            f"| {statistics.mean(one.low_share for one in runs):.0%} "
            f"| {statistics.mean(one.num_switches for one in runs):.1f} |"
        )
    return "\n".join(lines)


def summary(outcomes: list[Outcome]) -> str:
    """The two numbers of the goal, over all tasks."""
    by_run = {(one.task, one.mode, one.seed): one for one in outcomes}
    avoidable = [
        (one.task, one.seed)
        for one in outcomes
        if one.mode == "low" and one.has_diverged and not by_run[one.task, "fp32", one.seed].has_diverged
    ]
    lines: list[str] = []
    for mode in MODES[2:]:
        own = [(task, seed) for task, seed in avoidable if (task, mode, seed) in by_run]
        avoided = sum(not by_run[task, mode, seed].has_diverged for task, seed in own)
        shares = [one.low_share for one in outcomes if one.mode == mode]
        if not shares:  # not every mode is for every task
            continue
        new = sum(
            one.mode == mode and one.has_diverged and not by_run[one.task, "low", one.seed].has_diverged
            for one in outcomes
        )
        lines.append(
            f"{mode}: avoids {avoided} of {len(own)} divergences that fp32 avoids, "
            f"with {statistics.mean(shares):.0%} of the work in the low format; {new} runs diverge that the low format "
            "alone does not lose"
        )
    return "\n".join(lines)


def kept(own: list[Outcome]) -> list[Outcome]:
    """All runs by now, those of a task done again in the place of the earlier; tasks may be run one by one."""
    earlier = json.loads(FILE.read_text()) if FILE.exists() else []
    names = {one.name for one in fields(Outcome)}  # those of another version of this script are no more of use
    every = [*(Outcome(**one) for one in earlier if one["task"] != own[0].task and {*one} == names), *own]
    OUT.mkdir(exist_ok=True)
    FILE.write_text(json.dumps([asdict(one) for one in every], indent=1))
    return every


def main() -> None:
    """Train all, print the table, write every run down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", default="", help="tasks whose name holds this")
    parser.add_argument("--quick", action="store_true", help="2 seeds")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # a run that is lost says so, once a run
    outcomes: list[Outcome] = []
    seeds = range(FIRST_SEED, FIRST_SEED + (2 if given.quick else given.seeds))
    print("| training | mode | diverged | of those fp32 avoids, avoided | median loss | in the low format | switches |")
    print("|---|---|---|---|---|---|---|")
    for task in TASKS:
        if given.only in task.name:
            own = [train(task, mode, seed) for mode in task.modes for seed in seeds]
            print(shown(own), flush=True)
            beyond = statistics.mean(one.beyond for one in own if one.mode == "scheduled")
            print(f"{task.name}: results beyond fp16 in {beyond:.0%} of the work", file=sys.stderr, flush=True)
            outcomes = kept(own)
    print(f"over the trainings in {FILE}:")
    print(summary(outcomes))


if __name__ == "__main__":
    main()
