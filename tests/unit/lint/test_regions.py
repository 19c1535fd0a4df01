import ast

import pytest

from ampwise.lint.tree import dotted


def region(parse, source):
    file = parse("import torch\n" + source)
    mark = next(call for call in file.tree.nodes(ast.Call) if dotted(call.func) == "mark")
    return file.regions.autocast(mark)


@pytest.mark.parametrize(
    ("source", "facts"),
    [
        ("with torch.autocast('cuda'):\n    mark()", ("cuda", "torch.float16", True)),
        ("with torch.autocast('cpu'):\n    mark()", ("cpu", "torch.bfloat16", True)),
        ("with torch.autocast(kind, dtype=torch.bfloat16):\n    mark()", (None, "torch.bfloat16", True)),
        ("with torch.amp.autocast('cuda', torch.bfloat16, on):\n    mark()", ("cuda", "torch.bfloat16", None)),
        ("with torch.cuda.amp.autocast(on):\n    mark()", ("cuda", "torch.float16", None)),
        ("with open(f), torch.cuda.amp.autocast():\n    mark()", ("cuda", "torch.float16", True)),
        ("ctx = torch.autocast('cuda')\nwith ctx:\n    mark()", ("cuda", "torch.float16", True)),
        ("@torch.autocast('cuda')\ndef f():\n    mark()", ("cuda", "torch.float16", True)),
        (
            (
                "from functools import partial\namp = partial(torch.autocast, 'cuda', dtype=torch.bfloat16)\n"
                "with amp(enabled=on):\n    mark()"
            ),
            ("cuda", "torch.bfloat16", None),
        ),
        ("amp = lambda: torch.autocast('cuda')\nwith amp():\n    mark()", ("cuda", "torch.float16", True)),
        ("amp = torch.cuda.amp.autocast if on else suppress\nwith amp():\n    mark()", ("cuda", "torch.float16", None)),
        (
            "ctx = nullcontext() if off else torch.autocast('cuda')\nwith ctx:\n    mark()",
            ("cuda", "torch.float16", None),
        ),
        (
            "if on:\n    ctx = torch.autocast('cuda')\nelse:\n    ctx = nullcontext()\nwith ctx:\n    mark()",
            ("cuda", "torch.float16", None),
        ),
        ("def make():\n    return torch.autocast('cuda')\nwith make():\n    mark()", ("cuda", "torch.float16", True)),
        (
            "def train(ctx):\n    with ctx:\n        mark()\ntrain(torch.autocast('cuda'))",
            ("cuda", "torch.float16", True),
        ),
        (
            (
                "class T:\n    def train(self, x, amp=None):\n        with amp():\n            mark()\n"
                "    def run(self):\n"
                "        self.train(1, amp=lambda: torch.autocast('cpu'))"
            ),
            ("cpu", "torch.bfloat16", True),
        ),
    ],
)
def test_the_region_in_force(parse, source, facts):
    found = region(parse, source)
    assert (found.device_type, found.dtype, found.enabled) == facts


@pytest.mark.parametrize(
    "source",
    [
        "mark()",
        "with torch.autocast('cuda'):\n    pass\nmark()",
        "with torch.autocast('cuda', enabled=False):\n    mark()",
        "with torch.autocast('cuda'):\n    with torch.autocast('cuda', enabled=False):\n        mark()",
        "with torch.autocast('cuda'):\n    def f():\n        mark()",
        "with torch.autocast(mark()):\n    pass",
        "with open(f):\n    mark()",
        "ctx = ctx if on else ctx\nwith ctx:\n    mark()",
        "def train(ctx):\n    with ctx:\n        mark()\ntrain(nullcontext())",
        "def make():\n    return make()\nwith make():\n    mark()",
        "from functools import partial\namp = partial(torch.autocast, 'cuda', enabled=False)\nwith amp():\n    mark()",
    ],
)
def test_no_region(parse, source):
    assert region(parse, source) is None
