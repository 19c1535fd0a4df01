"""A recording as the rules ask it: the run that is judged, and those made to find out more."""

from dataclasses import dataclass

from ampwise.records.recording import Recording
from ampwise.records.run import Role, RunRecord, StepRecord


@dataclass(frozen=True, slots=True)
class Case:
    """One recording under examination.

    Law: two cases of equal recordings give equal answers, and none changes anything.

    Raises:
        ValueError: the recording holds no run.
    """

    recording: Recording

    def __post_init__(self) -> None:
        if not self.recording.runs:
            raise ValueError("a recording without a run cannot be judged")

    @property
    def run(self) -> RunRecord:
        """The run that is judged: the watched one, else the first."""
        return self.rerun(Role.WATCHED) or self.recording.runs[0]

    def rerun(self, role: Role) -> RunRecord | None:
        """The last run that was made for that purpose; None where there was none."""
        return next((run for run in reversed(self.recording.runs) if run.role is role), None)

    @property
    def steps(self) -> tuple[StepRecord, ...]:
        """The steps of the run that is judged."""
        return self.run.steps

    @property
    def is_on_cpu(self) -> bool:
        """Whether the run took place on the CPU."""
        return self.recording.environment.device.startswith("cpu")
