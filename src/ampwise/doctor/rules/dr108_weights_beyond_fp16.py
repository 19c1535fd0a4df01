"""DR108: a weight is too large for fp16."""

from collections.abc import Iterator

from ampwise._base.text import inert_line
from ampwise.doctor.case import Case
from ampwise.doctor.origins import OR_BF16, origins, remedy_at, rule_that_helps, with_precision
from ampwise.doctor.reruns import what_removed_it
from ampwise.doctor.rule import Rule
from ampwise.doctor.weights import computes_in_fp16, holds_large_weight, large_weights
from ampwise.records.finding import Confidence, Example, Finding, RuleInfo, Severity
from ampwise.records.numerics import TensorKind, TensorStatistics
from ampwise.records.site import Phase, Site

INFO = RuleInfo(
    id="DR108",
    name="weights-beyond-fp16",
    severity=Severity.ERROR,
    why="fp16 ends at 65504. A weight beyond it becomes infinite when it is cast, before anything is computed: a "
    "checkpoint trained in bf16 or fp32 may hold such weights.",
    remedy="Compute in bf16, which has fp32's range; or keep that module in fp32, by the plan's rule given here.",
    evidence="The weight's largest magnitude, measured, beside fp16's largest number.",
    bad=(
        Example(
            title="a weight of 70000",
            source="""
import torch

model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
with torch.no_grad():
    model[0].weight[0, 0] = 7e4
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for _ in range(20):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.ones(8, 4) * 1e-4).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        ),
    ),
)


def check(case: Case) -> Iterator[Finding]:
    """Weights that are infinite in fp16, in a run that computes in fp16; none that a plan kept in fp32."""
    for tensor, amax in large_weights(case):
        if not _is_cast(case, tensor):
            continue
        site = Site(phase=Phase.FORWARD, module=tensor.module)
        yield Finding(
            rule=INFO.id,
            severity=INFO.severity,
            confidence=Confidence.LIKELY,
            message=f"{_name(tensor)} holds {amax:.4g}, and fp16 ends at 65504: it is infinite once it is cast.",
            site=site,
            evidence="; ".join([f"largest magnitude {amax:.6g}, held in {tensor.dtype}", *what_removed_it(case)]),
            remedy=with_precision(case, site, remedy_at(case, site, INFO.remedy, or_else=OR_BF16)),
            plan_rule=rule_that_helps(case, site, f"a weight of {amax:.4g} is beyond fp16"),
        )


def reassure(case: Case) -> Iterator[str]:
    """Say how large the largest weight is, where fp16 is computed in."""
    numerics = case.run.numerics
    if numerics is None or not computes_in_fp16(case):
        return
    sizes = [one.max_amax for one in numerics.tensors if one.kind is TensorKind.WEIGHT]
    known = [one for one in sizes if one is not None]
    if known:
        yield f"every weight fits fp16: the largest is {max(known):.3g} of 65504"


def _is_cast(case: Case, tensor: TensorStatistics) -> bool:
    """Whether a trace saw the weight become infinite; True where nobody traced."""
    is_traced = any(run.nonfinite is not None and run.nonfinite.traced_steps for run in case.recording.runs)
    of_module = (one for one in origins(case) if one.site.module == tensor.module)
    return not is_traced or any(holds_large_weight(case, one) for one in of_module)


def _name(tensor: TensorStatistics) -> str:
    name = tensor.parameter or "a weight"
    return inert_line(f"{tensor.module}.{name}" if tensor.module else name)


RULE = Rule(info=INFO, check=check, reassure=reassure)
