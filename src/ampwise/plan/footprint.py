"""How many bytes a parameter takes in training, by how a plan keeps and updates it."""

from dataclasses import dataclass

from ampwise.formats.table import FORMATS
from ampwise.plan.plan import Plan, Updates


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes for each parameter between two steps, with AdamW's two numbers of state."""

    weight: int
    gradient: int
    master: int
    state: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weight + self.gradient + self.master + self.state

    def words(self) -> str:
        """For a person: ``8 bytes a parameter with AdamW: weight 2, gradient 2, state 4``."""
        parts = {"weight": self.weight, "gradient": self.gradient, "master": self.master, "state": self.state}
        listed = ", ".join(f"{name} {size}" for name, size in parts.items() if size)
        return f"{self.total} bytes a parameter with AdamW: {listed}"


def footprint(plan: Plan) -> Footprint:
    """What a parameter takes under ``plan``: torch's optimizers keep gradients and state in its own format."""
    own = FORMATS["fp32" if plan.parameters == "tf32" else plan.parameters].storage_bits // 8
    is_master = plan.updates is Updates.MASTER
    return Footprint(weight=own, gradient=own, master=4 * is_master, state=2 * (4 if is_master else own))
