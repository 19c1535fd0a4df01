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
    ],
)
def test_no_region(parse, source):
    assert region(parse, source) is None
