"""What a plan costs: a region by a rule on a module, an overridden operator, and everything else.

One process, the plan on and off in turn; processor time on one thread. Each row's milliseconds are microseconds a
call, for ``CALLS`` calls. A module that passes its input on shows the region alone; the operators are tiny, so that the
mode is all there is. "Beside a rule" is an operator that no rule names in a module where one names another; "elsewhere"
is a module that no rule names, beside one that a rule names. Compiled, both sides run the same graph: what is left is
the guards, once a call of the whole model. "A mode by hand" is the same by hand within a function mode that does
nothing: what Dynamo takes for any mode. "A region entered" is ``autocast(plan=)`` around nothing, as once a step, for a
model of 231 modules of which a rule names every third; a rule on an operator is put on all of them. "Stock lists" is a
training step under a plan without rules that keeps torch's lists, beside ``torch.autocast`` around the same forward.
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from _common import Row, in_turn, publish, row_of
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it
from torch.overrides import TorchFunctionMode

import ampwise
from ampwise.plan.plan import Lists, Plan, Rule

CALLS = 1000
BF16 = torch.bfloat16
x = torch.randn(4, 8)


class Repeated(nn.Module):
    """Makes ``CALLS`` calls of something in a forward."""

    def __init__(self, call: Callable[[torch.Tensor], torch.Tensor], part: nn.Module | None = None) -> None:
        super().__init__()
        self.part = part or nn.Identity()
        self.call = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pass the input on."""
        for _ in range(CALLS):
            self.call(x)
        return x


def modules(part: nn.Module) -> Repeated:
    return Repeated(part, part)


def plan(*rules: Rule) -> Plan:
    return Plan(default="bf16", rules=rules, lists=Lists.STOCK)


def cases() -> dict[str, tuple[nn.Module, Plan, str]]:
    """Name -> the model, its plan, the goal in microseconds a call."""
    weight, fp32 = torch.randn(8, 8), Rule(module="part", compute="fp32")
    softmax = Rule(op="softmax", compute="fp32")
    elsewhere = nn.Sequential(modules(nn.Identity()), nn.Softmax(-1))
    return {
        "module in fp32": (modules(nn.Identity()), plan(fp32), "<= 4 us"),
        "module in fp16": (modules(nn.Identity()), plan(Rule(module="part", compute="fp16")), "<= 4 us"),
        "x.softmax overridden": (Repeated(lambda x: x.softmax(-1)), plan(softmax), "<= 4 us"),
        "F.softmax overridden": (Repeated(lambda x: F.softmax(x, -1)), plan(softmax), "<= 4 us"),
        "linear overridden": (
            Repeated(lambda x: F.linear(x, weight)),
            plan(Rule(op="linear", compute="fp32")),
            "<= 4 us",
        ),
        "relu beside a rule": (Repeated(torch.relu), plan(softmax), "reported"),
        "module elsewhere": (elsewhere, plan(Rule(op="softmax", module="1", compute="fp32")), "0"),
        "relu, no rules": (Repeated(torch.relu), plan(), "0"),
    }


def timed(model: nn.Module, given: Plan, *, on: bool) -> float:
    """Milliseconds of a forward under torch's own autocast in the plan's default."""
    context = ampwise.plan_in_effect(model, given) if on else nullcontext()
    with torch.no_grad(), torch.autocast("cpu", BF16), context:
        model(x)
        start = time.process_time()
        model(x)
        return (time.process_time() - start) * 1e3


def row(name: str, model: nn.Module, given: Plan, goal: str, *, runs: int) -> Row:
    ours, plain = in_turn(lambda on: timed(model, given, on=on), runs=runs)
    added = statistics.median(one - other for one, other in zip(ours, plain, strict=True))
    return row_of(name, ours, plain, side=f"+{added:.2f} us", baseline="torch.autocast", goal=goal)


class NullMode(TorchFunctionMode):
    """A function mode that does nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


WO, SOFTMAX = Rule(module="wo", compute="fp32"), Rule(op="softmax", compute="fp32")
COMPILED: dict[str, tuple[Rule, ...]] = {
    "compiled, a module's rule": (WO,),
    "compiled, an operator's too": (WO, SOFTMAX),
    "compiled, a mode by hand": (),
}


def compiled_row(kind: str, *, runs: int) -> Row:
    """A compiled model with a module in fp32 and an operator in fp32, beside one whose code says the same itself."""

    class ByHand(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.wo = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", BF16):
                x = self.a(x)
            with torch.autocast("cpu", enabled=False):
                x = self.wo(x.float())
                return torch.softmax(x.float(), -1)

    class Plain(ByHand):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(self.wo(self.a(x)), -1)

    class InMode(ByHand):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with NullMode():
                return super().forward(x)

    rules = COMPILED[kind]
    model, by_hand = Plain() if rules else InMode(), ByHand()
    with ampwise.plan_in_effect(model, plan(*rules)), torch.no_grad(), torch.autocast("cpu", BF16):
        sides = [torch.compile(one, backend="aot_eager", fullgraph=True) for one in (model, by_hand)]
        times: list[list[float]] = [[], []]
        for number in range(runs + 1):
            for index in (0, 1) if number % 2 else (1, 0):
                start = time.process_time()
                for _ in range(CALLS):
                    sides[index](x)
                times[index].append((time.process_time() - start) * 1e3)
    ours, plain = times[0][1:], times[1][1:]
    side = f"{statistics.median(ours) - statistics.median(plain):+.2f} us"
    return row_of(kind, ours, plain, side=side, baseline="the same by hand", goal="0" if rules else "reported")


def region_row(name: str, rule: Rule, *, runs: int) -> Row:
    """Entering and leaving ``autocast(plan=)``, made anew each time, beside torch.autocast."""
    block = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    model = nn.Sequential(*[copy.deepcopy(block) for _ in range(76)], nn.Identity(), nn.Identity())
    given = plan(rule)

    def timed(*, on: bool) -> float:
        start = time.process_time()
        for _ in range(CALLS):
            with ampwise.autocast("cpu", plan=given, model=model) if on else torch.autocast("cpu", BF16):
                pass
        return (time.process_time() - start) * 1e3

    for on in (True, False):
        timed(on=on)
    pairs = [(timed(on=True), timed(on=False)) for _ in range(runs)]
    ratios = [plain / ours for ours, plain in pairs]
    return Row(
        case=name,
        side=f"+{statistics.median(ours - plain for ours, plain in pairs):.0f} us",
        baseline="torch.autocast",
        ms=statistics.median(ours for ours, _ in pairs),
        baseline_ms=statistics.median(plain for _, plain in pairs),
        ratio=statistics.median(ratios),
        ratio_min=min(ratios),
        ratio_max=max(ratios),
        runs=runs,
        goal="reported",
    )


def stock_row(*, runs: int) -> Row:
    """A training step under torch's own lists, by a plan and by torch.autocast."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
    plain_model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    planned, tokens = copy.deepcopy(plain_model), torch.randn(8, 64, 128)
    ampwise.apply_plan(planned, plan())  # once, as in a training

    def step(on: bool) -> float:  # noqa: FBT001 - which side is all it is told
        model, context = (planned, nullcontext()) if on else (plain_model, torch.autocast("cpu", BF16))
        start = time.process_time()
        for _ in range(4):
            with context:
                out = model(tokens)
            out.float().square().mean().backward()
            model.zero_grad()
        return (time.process_time() - start) * 1e3 / 4

    in_turn(step, runs=1)
    ours, plain = in_turn(step, runs=runs)
    return row_of("stock lists", ours, plain, side="a plan without rules", baseline="torch.autocast", goal=">= 0.99")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=21)
    parser.add_argument("--quick", action="store_true", help="fewer runs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    runs = 7 if arguments.quick else arguments.runs
    rows = [row(name, *case, runs=runs) for name, case in cases().items()]
    regions = {
        "a region entered, modules": Rule(module="*.0", compute="fp32"),
        "a region entered, an operator": Rule(op="softmax", compute="fp32"),
    }
    publish(
        "plan",
        [
            *rows,
            *(compiled_row(kind, runs=runs) for kind in COMPILED),
            *(region_row(name, rule, runs=runs) for name, rule in regions.items()),
            stock_row(runs=runs),
        ],
        note=f"Processor time; {CALLS} calls, so ms are us a call.",
    )


if __name__ == "__main__":
    main()
