import ast

import pytest

from ampwise.lint.kinds import Confidence, Kind

HEAD = """
import torch
from torch import nn, optim
import torch.nn.functional as F

class Net(nn.Module):
    pass

class FocalLoss(nn.Module):
    pass

"""


def value(parse, source):
    """What is known of the argument of use(...), the last call of that name."""
    file = parse(HEAD + source)
    calls = [call for call in file.tree.nodes(ast.Call) if isinstance(call.func, ast.Name) and call.func.id == "use"]
    return file.kinds.of(calls[-1].args[0])


@pytest.mark.parametrize(
    ("source", "kind", "confidence"),
    [
        ("s = torch.amp.GradScaler('cuda')\nuse(s)", Kind.SCALER, Confidence.MADE),
        ("def f(thing):\n    thing.unscale_(o)\n    use(thing)", Kind.SCALER, Confidence.USE),
        ("def f(thing):\n    thing.scale(x).backward()\n    use(thing)", Kind.SCALER, Confidence.USE),
        ("def f(scaler):\n    use(scaler)", Kind.SCALER, Confidence.NAME),
        ("from sklearn.preprocessing import StandardScaler\nscaler = StandardScaler()\nuse(scaler)",
         Kind.SCALER, Confidence.NAME),
        ("o = optim.AdamW(p)\nuse(o)", Kind.OPTIMIZER, Confidence.MADE),
        ("def f(thing):\n    thing.zero_grad()\n    thing.step()\n    use(thing)", Kind.OPTIMIZER, Confidence.USE),
        ("use(optim.lr_scheduler.StepLR(o, 1))", Kind.SCHEDULER, Confidence.MADE),
        ("m = Net().to(device)\nuse(m)", Kind.MODULE, Confidence.MADE),
        ("m = torch.compile(nn.DataParallel(Net()))\nuse(m)", Kind.MODULE, Confidence.MADE),
        ("class A:\n    def __init__(self):\n        self.m = Net()\n    def f(self):\n        use(self.m)",
         Kind.MODULE, Confidence.MADE),
        ("use(FocalLoss())", Kind.LOSS_FUNCTION, Confidence.MADE),
        ("use(nn.CrossEntropyLoss())", Kind.LOSS_FUNCTION, Confidence.MADE),
        ("use(torch.utils.data.DataLoader(d))", Kind.LOADER, Confidence.MADE),
        ("y = Net()(x)\nuse(y)", Kind.TENSOR, Confidence.MADE),
        ("y = Net()(x)\nuse(y.item())", Kind.NUMBER, Confidence.MADE),
        ("y = Net()(x)\nuse(y.shape[0])", Kind.NUMBER, Confidence.MADE),
        ("loss = 1.0\nuse(loss)", Kind.NUMBER, Confidence.MADE),
        ("use(len(x) / 2)", Kind.NUMBER, Confidence.MADE),
        ("use(unknown)", Kind.UNKNOWN, Confidence.NONE),
        ("from mine import model\nuse(model)", Kind.UNKNOWN, Confidence.NONE),
    ],
)  # fmt: skip
def test_kinds(parse, source, kind, confidence):
    found = value(parse, source)
    assert (found.kind, found.confidence) == (kind, confidence)


@pytest.mark.parametrize(
    ("source", "on_device"),
    [
        ("use(Net()(x))", True),
        ("use(Net()(x).cpu())", False),
        ("use(Net()(x).detach().mean())", True),
        ("use(torch.randn(3))", False),
        ("use(torch.randn(3, device='cuda'))", True),
        ("use(torch.randn(3, device='cpu'))", False),
        ("use(torch.randn(3).to(device))", True),
        ("use(torch.randn(3).to('cpu'))", False),
        ("for x, y in train_loader:\n    use(x)", False),
        ("for i, (x, y) in enumerate(train_loader):\n    x = x.cuda()\n    use(x)", True),
        ("loss = Net()(x)\nuse(loss * 2 + torch.ones(1))", True),
        ("use(F.mse_loss(Net()(x), y))", True),
    ],
)
def test_devices(parse, source, on_device):
    found = value(parse, source)
    assert found.kind is Kind.TENSOR
    assert found.on_device is on_device


@pytest.mark.parametrize(
    ("source", "is_half"),
    [
        ("use(Net()(x).half())", True),
        ("use(Net().half())", True),
        ("use(Net()(x).to(torch.float16))", True),
        ("use(Net()(x).half().float())", False),
        ("use(torch.zeros(1, dtype=torch.half))", True),
        ("use(torch.zeros(1, dtype=torch.bfloat16))", False),
        ("use(Net()(x).to(dtype))", None),
    ],
)
def test_halves(parse, source, is_half):
    assert value(parse, source).is_half is is_half


@pytest.mark.parametrize(
    ("source", "has_graph"),
    [
        ("use(Net()(x))", True),
        ("use(Net()(x).detach())", False),
        ("use(Net()(x).data)", False),
        ("with torch.no_grad():\n    y = Net()(x)\nuse(y)", False),
        ("@torch.inference_mode()\ndef f():\n    use(Net()(x))", False),
        ("with torch.set_grad_enabled(False):\n    y = Net()(x)\nuse(y)", False),
        ("with torch.set_grad_enabled(train):\n    y = Net()(x)\nuse(y)", True),
    ],
)
def test_graphs(parse, source, has_graph):
    assert value(parse, source).has_graph is has_graph


def test_a_name_that_refers_to_itself_ends(parse):
    assert value(parse, "x = y\ny = x\nuse(x + y)").kind is Kind.UNKNOWN


def test_a_long_chain_ends(parse):
    assert value(parse, "use(" + "a + " * 400 + "a)").kind is Kind.UNKNOWN
