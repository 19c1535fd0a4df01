"""What a page of the documentation holds, and what its code speaks of and does not make."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text: str, language: str) -> list[str]:
    """The blocks of code in that language."""
    return [code for name, code in _BLOCK.findall(text) if name == language]


def sections(page: Path) -> Iterator[tuple[str, str]]:
    """The headings of the second level, each with what stands below it."""
    for section in re.split(r"^## ", page.read_text(), flags=re.MULTILINE)[1:]:
        heading, _, text = section.partition("\n")
        yield heading, text


def stand_ins() -> dict[str, Any]:
    """A model, its optimizer, a loader, a loss; and which epoch it is."""
    import torch

    import ampwise

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))
    return {
        "ampwise": ampwise,
        "torch": torch,
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-2),
        "loader": [(torch.randn(6, 4), torch.randint(0, 3, (6,))) for _ in range(8)],
        "criterion": torch.nn.CrossEntropyLoss(),
        "epoch": 3,
    }
