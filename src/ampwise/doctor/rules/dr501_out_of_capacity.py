"""DR501: the GPU is too small for what the step keeps at once."""

from collections.abc import Iterator

from ampwise._base.units import format_bytes
from ampwise.doctor.case import Case
from ampwise.doctor.memory import FailedRequest, failed_request, parts_words, peak_of
from ampwise.doctor.rule import Rule
from ampwise.records.finding import Confidence, Finding, RuleInfo, Severity
from ampwise.records.memory import MemoryCategory, MemoryPoint

INFO = RuleInfo(
    id="DR501",
    name="out-of-capacity",
    severity=Severity.ERROR,
    why="The tensors that must live at the same time, and the one that was asked for, are more than the GPU has. No "
    "setting of the allocator makes room for them.",
    remedy="Cut the largest category: activations by a smaller batch with gradient accumulation or by "
    "`torch.utils.checkpoint`, optimizer state by another optimizer, all of them by sharding (FSDP).",
    evidence="the allocator's own figures when the request failed, by the sizes in torch's AllocatorConfig.h. Judged "
    "on recordings only: no GPU was at hand.",
)


def check(case: Case) -> Iterator[Finding]:
    """A request that fits in no room there is, and whether it is this process that fills the GPU."""
    request = failed_request(case)
    if request is None or request.is_fragmented:
        return
    failure, peak = case.run.failure, peak_of(case)
    at = f" at {failure.where}" if failure is not None and failure.where else ""
    held = f"; the step's peak before: {parts_words(peak)}" if peak is not None else ""
    yield Finding(
        rule=INFO.id,
        severity=INFO.severity,
        confidence=Confidence.LIKELY,
        message=_message(request, at),
        evidence=f"{request.words}{held}",
        remedy=_remedy(request, peak),
    )


def _message(request: FailedRequest, at: str) -> str:
    if request.missing_bytes > 0:
        return f"{request.state.device} is too small by {format_bytes(request.missing_bytes)}{at}."
    elsewhere = format_bytes(request.elsewhere_bytes)
    return f"{request.state.device} is full{at}, and {elsewhere} of it is not this script's tensors."


def _remedy(request: FailedRequest, peak: MemoryPoint | None) -> str:
    if request.missing_bytes <= 0:
        return "Look with `nvidia-smi` for other processes on this GPU, and end those that are done with."
    if peak is None:
        return f"{INFO.remedy} `ampwise estimate` says what a step takes, without a GPU."
    match max(peak.categories, key=lambda part: part.bytes).category:
        case MemoryCategory.ACTIVATION | MemoryCategory.CAST | MemoryCategory.TEMPORARY:
            return (
                "Activations take the most: halve the batch and accumulate gradients over two, or recompute blocks "
                "with `torch.utils.checkpoint`; `ampwise estimate` says what fits."
            )
        case _:
            return (
                "Weights, gradients and optimizer state take the most, and a smaller batch does not shrink them: use "
                "an optimizer with less state, parameters in bf16, or sharding (FSDP)."
            )


RULE = Rule(info=INFO, check=check)
