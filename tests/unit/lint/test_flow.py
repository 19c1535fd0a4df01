"""Events, and which can follow which on some path."""

import ast

import pytest

from ampwise.lint.engine import check_text
from ampwise.lint.events import Act
from ampwise.lint.flow import Flow
from ampwise.lint.rule import all_rules
from ampwise.lint.text import SourceText

HEAD = """
import torch
scaler = torch.amp.GradScaler("cuda")
opt = torch.optim.SGD(model.parameters())

"""


def acts(file):
    return [event.act for event in file.flow.read.all]


def reaches(parse, source, *, goal=Act.CLIP, stop=(Act.UNSCALE, Act.STEP)):
    """Lines (in ``source``) at which a scaled backward reaches the goal."""
    file = parse(HEAD + source)
    found = file.flow.reached(
        start=lambda event: event.act is Act.BACKWARD and event.is_scaled,
        goal=lambda _, event: event.act is goal,
        stop=lambda _, event: event.act in stop,
    )
    return [reach.goal.node.lineno - 3 for reach in found]


def test_events_come_in_the_order_of_evaluation(parse):
    file = parse(
        HEAD + "scaler.scale(criterion(model(x), y)).backward()\nscaler.unscale_(opt)\n"
        "torch.nn.utils.clip_grad_norm_(p, 1)\nscaler.step(opt)\nscaler.update()\nopt.zero_grad()\n"
        "sched.step()\nopt.step()\ntorch.cuda.synchronize()\ntorch.save(x, y)\np.grad.norm()\nhelp(scaler, opt)\n"
    )
    assert acts(file) == [
        Act.FORWARD, Act.BACKWARD, Act.UNSCALE, Act.CLIP, Act.STEP, Act.UPDATE, Act.ZERO_GRAD,
        Act.SCHEDULER_STEP, Act.STEP, Act.SYNC, Act.SAVE, Act.GRAD_USE, Act.OPAQUE,
    ]  # fmt: skip
    steps = [event for event in file.flow.read.all if event.act is Act.STEP]
    assert [(event.scaler, event.optimizer) for event in steps] == [("scaler", "opt"), (None, "opt")]


@pytest.mark.parametrize(
    ("source", "is_scaled"),
    [
        ("scaler.scale(loss).backward()", True),
        ("loss = scaler.scale(loss)\nloss.backward()", True),
        ("(scaler.scale(a) + scaler.scale(b)).backward()", True),
        ("torch.autograd.backward(scaler.scale(loss))", True),
        ("scaler.scale(loss).mean().backward()", True),
        ("scaler.scale(loss)\nloss.backward()", False),
        ("loss.backward()", False),
        ("transform.scale(loss).backward()", True),  # only a scaler is used so
    ],
)
def test_whether_a_backward_is_scaled(parse, source, is_scaled):
    file = parse(HEAD + source)
    backward = next(event for event in file.flow.read.all if event.act is Act.BACKWARD)
    assert backward.is_scaled is is_scaled


@pytest.mark.parametrize(
    ("expression", "is_use"),
    [
        ("p.grad.norm()", True),
        ("p.grad.data.norm(2)", True),
        ("p.grad.clamp_(-1, 1)", True),
        ("torch.norm(torch.stack([torch.norm(p.grad) for p in ps]))", True),
        ("p.grad.detach() ** 2", True),
        ("p.grad.mul_(0.5)", False),
        ("torch.isfinite(p.grad).all()", False),
        ("p.grad.zero_()", False),
        ("x = p.grad", False),
    ],
)
def test_uses_of_gradients_that_a_factor_changes(parse, expression, is_use):
    assert (Act.GRAD_USE in acts(parse(HEAD + expression))) is is_use


BACK, CLIP, UNSCALE = "scaler.scale(loss).backward()", "torch.nn.utils.clip_grad_norm_(p, 1)", "scaler.unscale_(opt)"


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        (f"{BACK}\n{CLIP}", [3]),
        (f"{BACK}\n{UNSCALE}\n{CLIP}", []),
        (f"{BACK}\nif a:\n    {UNSCALE}\n{CLIP}", [5]),
        (f"{BACK}\nif a:\n    {UNSCALE}\nelse:\n    {UNSCALE}\n{CLIP}", []),
        (f"if amp:\n    {BACK}\n    {UNSCALE}\nelse:\n    loss.backward()\n{CLIP}", []),
        (f"if amp:\n    {BACK}\nif not amp:\n    {CLIP}", []),
        (f"if amp:\n    {BACK}\nif amp is True:\n    {UNSCALE}\n{CLIP}", []),
        (f"if scaler is not None:\n    {BACK}\nif scaler:\n    {UNSCALE}\n{CLIP}", []),
        (f"if amp:\n    {BACK}\nif amp and clip:\n    {UNSCALE}\nif clip:\n    {CLIP}", []),
        (f"if amp:\n    {BACK}\namp = other\nif amp:\n    {UNSCALE}\n{CLIP}", [7]),
        (f"for x in xs:\n    {CLIP}\n    {BACK}", [3]),
        (f"for x in xs:\n    {BACK}\n    if (i + 1) % 4 == 0:\n        {UNSCALE}\n        {CLIP}\n", []),
        (f"for x in xs:\n    {BACK}\n    break\n{CLIP}", [5]),
        (f"for x in xs:\n    {BACK}\n    if a:\n        continue\n    {UNSCALE}\n    {CLIP}", []),
        (f"while True:\n    {BACK}\n    if a:\n        break\n{CLIP}", [6]),
        (f"{BACK}\nraise ValueError\n{CLIP}", []),
        (f"try:\n    {BACK}\nexcept OSError:\n    {CLIP}", [5]),
        (f"try:\n    {BACK}\nfinally:\n    {CLIP}", [5]),
        (f"with a:\n    {BACK}\n{CLIP}", [4]),
        (f"match a:\n    case 1:\n        {BACK}\n{CLIP}", [5]),
        (f"{BACK}\n{UNSCALE} if a else None\n{CLIP}", [4]),
        (f"{BACK} if amp else loss.backward()\nif amp:\n    {UNSCALE}\n{CLIP}", []),
        (f"def f():\n    {BACK}\n    return\n    {CLIP}", []),
    ],
)
def test_paths(parse, source, lines):
    assert reaches(parse, source) == lines


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        (f"def mend():\n    {UNSCALE}\n{BACK}\nmend()\n{CLIP}", []),
        (f"def clip():\n    {CLIP}\n{BACK}\nclip()", [3]),
        (f"def back():\n    {BACK}\nback()\n{CLIP}", [5]),
        (f"def one():\n    {UNSCALE}\ndef two():\n    one()\n{BACK}\ntwo()\n{CLIP}", [8]),
    ],
)
def test_calls_are_followed_one_level(parse, source, lines):
    assert reaches(parse, source) == lines


def test_a_callees_places_are_told_in_the_callers_names(parse):
    file = parse(
        HEAD + "def mend(s, o):\n    local = o\n    s.unscale_(o)\n    s.unscale_(local)\n"
        "class A:\n    def go(self):\n        mend(self.scaler, o=self.opts[0])\n"
    )
    seen = []

    def advance(fact, event):
        if event.act is Act.UNSCALE:
            seen.append((event.scaler, event.optimizer, event.via is not None))
        return fact

    root = next(node for node in file.flow.roots if getattr(node, "name", "") == "go")
    assert file.flow.paths(root, 0, advance) == {0}
    assert seen == [("self.scaler", "self.opts[0]", True), ("self.scaler", "mend:local", True)]


def test_conditions_on_self_hold_in_a_method(parse):
    source = f"""
class A:
    def mend(self):
        if self.amp:
            {UNSCALE}
    def go(self):
        if self.amp:
            {BACK}
        self.mend()
        {CLIP}
"""
    assert reaches(parse, source) == []


def test_a_function_with_too_many_paths_yields_nothing(parse):
    arms = "".join(f"if a{i}:\n    x{i} = 1\n" for i in range(30))
    assert reaches(parse, f"{BACK}\n{arms}{CLIP}") == [63]  # arms that change no fact are merged
    loops = "".join(f"if a{i}:\n    opts[{i}].step()\n" for i in range(30))
    file = parse(HEAD + loops)
    facts = file.flow.paths(file.tree.root, frozenset(), lambda fact, event: fact | {event.node})
    assert facts == set()


def test_deep_nesting_yields_nothing_but_no_error(parse):
    chain = "if a == 0:\n    pass\n" + "".join(f"elif a == {i}:\n    {BACK}\n" for i in range(1, 900))
    assert reaches(parse, f"{chain}{CLIP}") == []


def test_callers(parse):
    file = parse("def f(): pass\nf()\nx = f()\n")
    function = file.tree.nodes(ast.FunctionDef)[0]
    assert [call.lineno for call in file.flow.callers(function)] == [2, 3]


def test_the_first_look_on_all_paths_hides_nothing(monkeypatch):
    rules = [rule for rule in all_rules() if rule.info.id.startswith("MP1")]
    texts = [SourceText(one.source.encode()) for rule in rules for one in (*rule.info.bad, *rule.info.good)]
    found = [check_text("a.py", text, rules) for text in texts]
    walk = Flow._walk

    def thorough(self, *args, correlates=True):
        return walk(self, *args) if correlates else set()

    monkeypatch.setattr(Flow, "_walk", thorough)
    assert found == [check_text("a.py", text, rules) for text in texts]
