"""MP205: autocast is given a device or dtype that it refuses, or that is not the model's."""

import ast
from collections.abc import Iterator
from typing import Final

from ampwise.lint.events import Act
from ampwise.lint.kinds import Kind
from ampwise.lint.names import Bound
from ampwise.lint.regions import argument
from ampwise.lint.rule import Rule
from ampwise.lint.source import SourceFile, fix
from ampwise.lint.torch_names import AUTOCASTS
from ampwise.lint.tree import dotted
from ampwise.records.finding import Example, Finding, Fixable, RuleInfo, Severity

_FORWARD: Final = """
        return model(x)
"""

INFO = RuleInfo(
    id="MP205",
    name="device-mismatch",
    severity=Severity.ERROR,
    why='torch.autocast takes a device type such as "cuda" and a dtype such as torch.bfloat16. A torch.device is '
    "refused, a dtype written as text is refused by CUDA and switches the CPU's autocast off with a mere warning, "
    "and autocast for another device than the model's does nothing.",
    remedy="Write torch.autocast(device.type, dtype=torch.bfloat16).",
    evidence="Measured with torch 2.13: autocast(torch.device('cpu')) raises ValueError, autocast() TypeError; "
    "autocast('cpu', dtype='bfloat16') warns 'Disabling autocast'. Older releases refuse 'cuda:0'.",
    fixable=Fixable.SAFE,
    bad=(
        Example(
            source="""
import torch

device = torch.device("cuda")

def forward(model, x):
    with torch.autocast(device):
"""
            + _FORWARD,
            fixed="""
import torch

device = torch.device("cuda")

def forward(model, x):
    with torch.autocast(device.type):
"""
            + _FORWARD,
        ),
        Example(
            source="""
import torch

def forward(model, x):
    with torch.autocast("cpu", dtype="bfloat16"):
"""
            + _FORWARD,
            fixed="""
import torch

def forward(model, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
"""
            + _FORWARD,
        ),
        Example(
            title="no device",
            source="""
import torch

def forward(model, x):
    with torch.autocast():
"""
            + _FORWARD,
        ),
        Example(
            title="an index, which old releases refuse",
            target_torch="2.4",
            source="""
import torch

def forward(model, x):
    with torch.autocast("cuda:0"):
"""
            + _FORWARD,
            fixed="""
import torch

def forward(model, x):
    with torch.autocast("cuda"):
"""
            + _FORWARD,
        ),
        Example(
            title="the CPU's autocast around a model on the GPU",
            source="""
import torch
from torch import nn

model = nn.Linear(8, 8).cuda()

def forward(x):
    with torch.autocast("cpu"):
"""
            + _FORWARD,
        ),
    ),
    good=(
        Example(
            source="""
import torch

device = torch.device("cuda")

def forward(model, x):
    with torch.autocast(device.type, dtype=torch.bfloat16):
"""
            + _FORWARD,
        ),
        Example(
            title="chosen when the script runs",
            source="""
import torch

def forward(model, x, device, dtype):
    with torch.autocast(device, dtype=dtype):
"""
            + _FORWARD,
        ),
        Example(
            title="a name that is text in one place",
            source="""
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"

def forward(model, x):
    with torch.autocast(device):
"""
            + _FORWARD,
        ),
        Example(
            title="arguments handed on",
            source="""
import torch

def forward(model, x, **options):
    with torch.autocast(**options):
"""
            + _FORWARD,
        ),
        Example(
            title="a model that is on either",
            source="""
import torch
from torch import nn

model = nn.Linear(8, 8)
if torch.cuda.is_available():
    model = model.cuda()

def forward(x):
    with torch.autocast("cpu"):
"""
            + _FORWARD,
        ),
    ),
)

_PLAIN: Final = frozenset({"torch.autocast", "torch.amp.autocast"})
_DTYPES: Final = frozenset({"bfloat16", "float16", "half"})


def check(file: SourceFile) -> Iterator[Finding]:
    """Every construction of autocast with an argument that cannot be meant."""
    for call in file.tree.nodes(ast.Call):
        name = file.names.resolve(call.func)
        if name in AUTOCASTS:
            yield from _dtype(file, call, name)
            if name in _PLAIN:
                yield from _device(file, call, name)
    yield from _elsewhere(file)


def _device(file: SourceFile, call: ast.Call, name: str) -> Iterator[Finding]:
    given = argument(call, "device_type", 0)
    if given is None:
        if not call.args and all(keyword.arg for keyword in call.keywords) and not _is_decorated(file, call):
            yield file.finding(INFO, call, f"{name}() needs a device type")
    elif isinstance(given, ast.Constant) and isinstance(given.value, str):
        if ":" in given.value and not file.supports((2, 13)):
            head = given.value.partition(":")[0]
            edit = fix(file.edit.replace(given, f'"{head}"'), safe=True)
            yield file.finding(INFO, given, f'releases before torch 2.13 may refuse "{given.value}"', fix=edit)
    elif _is_device(file, given):
        edit = fix(file.edit.replace(given, f"{file.text.segment(given)}.type"), safe=True)
        yield file.finding(INFO, given, f"{name} takes a text, and {ast.unparse(given)} is a torch.device", fix=edit)


def _is_decorated(file: SourceFile, call: ast.Call) -> bool:
    """Whether the name is bound twice, as by try/except imports: another autocast may need no device."""
    return len(set(file.names.resolve_all(call.func))) > 1


def _is_device(file: SourceFile, given: ast.expr) -> bool:
    """Whether every binding in sight makes a torch.device of it."""
    if isinstance(given, ast.Call):
        return file.names.resolve(given.func) == "torch.device"
    found = file.names.lookup(given)
    return bool(found) and all(
        bound.how is Bound.ASSIGN
        and bound.index is None
        and isinstance(bound.value, ast.Call)
        and file.names.resolve(bound.value.func) == "torch.device"
        for bound in found
    )


def _dtype(file: SourceFile, call: ast.Call, name: str) -> Iterator[Finding]:
    is_plain = name in _PLAIN
    given = argument(call, "dtype", 1)
    if not isinstance(given, ast.Constant) or not isinstance(given.value, str):
        return
    word = given.value.removeprefix("torch.")
    imported = file.edit.import_module("torch", given)
    known = imported is not None and word in _DTYPES
    edit = (
        fix(file.edit.replace(given, f"{imported[0]}.{word}"), *imported[1], safe=True) if known and imported else None
    )
    result = "switches autocast off" if is_plain and _is_for_cpu(call) else "is refused"
    yield file.finding(INFO, given, f'dtype="{given.value}" is no torch.dtype: it {result}', fix=edit)


def _is_for_cpu(call: ast.Call) -> bool:
    given = argument(call, "device_type", 0)
    return isinstance(given, ast.Constant) and given.value == "cpu"


def _elsewhere(file: SourceFile) -> Iterator[Finding]:
    """The CPU's autocast around the forward of a model that is put on the GPU, always."""
    for region in file.regions.all():
        if region.device_type != "cpu" or region.enabled is False or region.call is None:
            continue
        for event in file.flow.events_in(region.node):
            if event.act is Act.FORWARD and isinstance(event.node, ast.Call) and _is_on_gpu(file, event.node.func):
                message = f"autocast for the CPU does nothing for {ast.unparse(event.node.func)}, which is on the GPU"
                yield file.finding(INFO, region.call, message, severity=Severity.WARNING)
                break


def _is_on_gpu(file: SourceFile, model: ast.expr) -> bool:
    """Whether the only value of the model in sight is moved to the GPU where it is made."""
    found = file.names.lookup(model)
    if len(found) != 1 or dotted(model) is None or not isinstance(found[0].value, ast.Call):
        return False
    made = found[0].value
    match made:
        case ast.Call(func=ast.Attribute(attr="cuda")):
            return file.kinds.is_a(made, Kind.MODULE)
        case ast.Call(func=ast.Attribute(attr="to"), args=[ast.Constant(value=str() as text), *_]):
            return text.startswith("cuda") and file.kinds.is_a(made, Kind.MODULE)
        case _:
            return False


RULE = Rule(info=INFO, check=check, words=("autocast",))
