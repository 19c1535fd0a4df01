"""A training step replayed as CUDA graphs beside the same TrainStep by hand: small models, where launching is the work.

Needs a CUDA device. The losses are compared bit for bit.
"""

import sys
from typing import Any

from _common import Row, publish, race_arguments, row_of

CASES = {"8 x Linear-256, batch 32": (8, 256, 32), "24 x Linear-512, batch 64": (24, 512, 64)}


def loop(depth: int, width: int) -> tuple[Any, Any]:
    """The model, and a TrainStep for it."""
    import torch

    from ampwise import TrainStep

    torch.manual_seed(0)
    layers = [one for _ in range(depth) for one in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return model, TrainStep(optimizer, modules=model, precision="fp16", clip_grad_norm=1.0, capture=True)


def race(case: str, *, rounds: int, clock: Any) -> Row:
    import torch

    depth, width, batch = CASES[case]
    (theirs, by_hand), (mine, step) = loop(depth, width), loop(depth, width)
    train = step.capture(lambda x: mine(x).float().pow(2).mean())
    times: dict[str, list[float]] = {"by hand": [], "captured": []}

    def hand(x: Any) -> Any:
        with by_hand.autocast():
            loss = theirs(x).float().pow(2).mean()
        by_hand(loss)
        return loss.detach()

    sides = {"by hand": hand, "captured": lambda x: train(x).loss_tensor}
    for number in range(rounds + 5):
        data, losses = [torch.randn(batch, width, device="cuda") for _ in range(20)], {}
        for name, one in sides.items():
            torch.cuda.synchronize()
            start = clock()
            for x in data:
                losses[name] = one(x)
            torch.cuda.synchronize()
            if number >= 5:
                times[name].append((clock() - start) * 1e3 / len(data))
        if not torch.equal(losses["by hand"], losses["captured"]):
            sys.exit(f"{case}: the losses differ in round {number}: {losses}")
    return row_of(case, times["captured"], times["by hand"], side="captured fp16", baseline="by hand fp16", goal="> 1")


def main() -> None:
    arguments, clock = race_arguments(__doc__)
    import torch

    if not torch.cuda.is_available():
        sys.exit("bench capture: torch sees no CUDA device here; nothing was run")
    rounds = 5 if arguments.quick else arguments.rounds
    publish("capture", [race(case, rounds=rounds, clock=clock) for case in CASES], note="Steps of one process.")


if __name__ == "__main__":
    main()
