"""DR706: a checkpoint holds the optimizer's state and not the scaler's."""

from collections.abc import Iterator

from ampwise.doctor.case import Case
from ampwise.doctor.rule import Rule
from ampwise.records.finding import Confidence, Example, Finding, RuleInfo, Severity

INFO = RuleInfo(
    id="DR706",
    name="scaler-not-saved",
    severity=Severity.WARNING,
    why="A run resumed from it starts at a scale of 65536 with its growth counter at 0: it skips steps again that "
    "the first run had learned to avoid.",
    remedy='Save it beside the optimizer: `"scaler": scaler.state_dict()`; or use `ampwise.save_checkpoint`.',
    evidence="composer issue 1376, transformers issue 11663, torchtitan issue 146: scaler state missing after a "
    "resume.",
    bad=(
        Example(
            title="no scaler in the checkpoint",
            source="""
import torch

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu")
for _ in range(20):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.randn(4, 8)).float().square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Lines that saved an optimizer's state without that of the scaler in use."""
    usage = case.run.usage
    if usage is None or not usage.has_scaler or any(save.has_scaler for save in usage.saves):
        return
    for save in usage.saves:
        yield Finding(
            rule=INFO.id,
            severity=INFO.severity,
            confidence=Confidence.LIKELY,
            message="The checkpoint holds the optimizer's state and not the scaler's.",
            site=save.site,
            evidence=f"{save.count} checkpoints saved here in {usage.num_steps} steps, none with a scaler's state",
            remedy=INFO.remedy,
        )


RULE = Rule(info=INFO, check=check)
