import re
import tomllib

import pytest

from ampwise._base.errors import PlanError
from ampwise.plan.file import load_plan, parse_plan
from ampwise.plan.plan import Lists, Plan, Rule, Updates

HEAD = 'version = 1\ndefault = "fp16"\n'


def mistakes(text, **options):
    with pytest.raises(PlanError) as caught:
        parse_plan(text, **options)
    return str(caught.value).splitlines()


def test_a_file_with_everything(tmp_path):
    (tmp_path / "plan.toml").write_text(
        """
        version = 1
        default = "float16"
        output = "fp32"
        grad = "bf16"
        parameters = "bf16"
        updates = "master"
        lists = "stock"
        torch = "2.13"
        [[rule]]
        module = "layers.*.wo"
        compute = "fp32"
        because = "overflows in fp16: amax 8.1e4 at step 3"
        [[rule]]
        op = "softmax"
        module = "*.attn"
        compute = "fp32"
        output = "bf16"
        grad = "fp32"
        """
    )
    assert load_plan(tmp_path / "plan.toml") == Plan(
        default="fp16",
        output="fp32",
        grad="bf16",
        parameters="bf16",
        updates=Updates.MASTER,
        lists=Lists.STOCK,
        torch="2.13",
        rules=(
            Rule(module="layers.*.wo", compute="fp32", because="overflows in fp16: amax 8.1e4 at step 3"),
            Rule(op="softmax", module="*.attn", compute="fp32", output="bf16", grad="fp32"),
        ),
    )


def test_every_mistake_at_once_each_with_its_path_and_line():
    lines = mistakes(
        """version = 1
default = "fp61"
lists = "cudda"
torch = 2.13
rules = 1
[[rule]]
module = 3
compute = "bf61"
[[rule]]
op = "sofmax"
compute = "fp32"
colour = "red"
[[rule]]
compute = "fp32"
[[rule]]
op = "F.softmax"
[[rule]]
op = "F.gelu"
compute = "fp32"
[[rule]]
op = "gelu"
compute = "bf16"
because = "x"
"""
    )
    assert lines[0] == "the plan: 11 mistakes"
    starts = [
        '  rules: is not a key of a plan; did you mean "rule"? (one of: version, include, default,',
        '  torch: is a number; write one text and in quotes: torch = "2.13"',
        '  lists: "cudda" is not a value of lists; did you mean "cuda"? (one of: cuda, stock)',
        '  default: "fp61" is not a format; did you mean "fp64"? (one of: fp64, fp32,',
        '  rules[0].module (line 6): is a number; write one text and in quotes: module = "3"',
        '  rules[0].compute (line 6): "bf61" is not a format; did you mean "bf16"? (one of: fp64,',
        "  rules[1].colour (line 9): is not a key of a rule (one of: module, op, compute, output, grad, because)",
        '  rules[1].op (line 9): "sofmax" is not an operator; did you mean "softmax"? (as torch spells it, such as',
        "  rules[2] (line 13): names neither a module nor an op; to set a format everywhere, write it as the default",
        "  rules[3].compute (line 15): is missing; write the format to compute in",
        '  rules[4] (line 17) and rules[5] (line 20) contradict each other for gelu: fp32; bf16 (because "x"). Keep',
    ]
    assert len(lines) == len(starts) + 1
    for line, start in zip(lines[1:], starts, strict=True):
        assert line.startswith(start), line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", 'the plan is empty; a plan begins with version = 1 and, for one, default = "bf16"'),
        ("# only words\n", "the plan is empty"),
        ("version = ", "the plan is not valid TOML: Invalid value"),
        ("default = 'bf16'", "the plan has no version; a plan begins with: version = 1"),
        ("version = '1'", "the plan is of version '1'; a plan begins with: version = 1"),
        (
            "[[rule]]\nversion = 1",
            "the plan has its version below a [[rule]], as a key of that rule; a plan begins with",
        ),
        ("version = true", "the plan is of version True; a plan begins with"),
        ("version = 0", "the plan is of version 0; a plan begins with"),
        (
            "version = 2\ndefault = 'bf61'",
            "the plan is a plan of version 2; this ampwise (0.1.0) reads versions up to 1: upgrade it",
        ),
        ("a = " + "[" * 5000, "the plan is not"),
    ],
)
def test_what_is_no_plan_is_refused_in_one_line(text, said):
    lines = mistakes(text)
    assert len(lines) == 1
    assert lines[0].startswith(said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version = 1", 'default: is missing; write the format to compute in, as in default = "bf16"'),
        (
            f"{HEAD}[[rule]]\nop = '@'\ncompute = 'fp32'\nlists = 'stock'",
            "rules[0].lists (line 3): is a key of the plan, and",
        ),
        (f"{HEAD}rule = 3", "rule: is a number; begin each rule with [[rule]]"),
        (f"{HEAD}[rule]\nop = 'softmax'", "rule: is a table; begin each rule with [[rule]]"),
        (f"{HEAD}rule = [3]", "rule: is a list; begin each rule with [[rule]]"),
        (
            f"{HEAD}include = 'moe'",
            'include: is not a list of texts; write it as in include = ["fp16-safe", "base.toml"]',
        ),
        (f"{HEAD}include = ['mo']", 'include: "mo" is not a preset; did you mean "moe"? (one of: fp32,'),
        (f"{HEAD}grad = 1979-05-27", "grad: is a date or time; write one text"),
        (f"{HEAD}updates = 'master'", "updates: master is for parameters below fp32; parameters are fp32"),
        (f"{HEAD}updates = 'chance'", 'updates: "chance" is not a value of updates'),
        (
            f"{HEAD}[[rule]]\nmodule = 're:('\ncompute = 'fp32'",
            'rules[0].module (line 3): "re:(" is not a regular expr',
        ),
        (
            f"{HEAD}[[rule]]\nmodule = ''\ncompute = 'fp32'",
            'rules[0].module (line 3): "" is empty; "*" means every module',
        ),
        (
            f"{HEAD}[[rule]]\nmodule = ['a', 'b']\ncompute = 'fp32'",
            "rules[0].module (line 3): is a list; write one text",
        ),
    ],
)
def test_one_mistake(text, said):
    head, line = mistakes(text)
    assert head == "the plan: 1 mistake"
    assert line.startswith(f"  {said}")


def test_escapes_in_a_file_do_not_reach_the_terminal():
    assert "\x1b" not in "".join(mistakes(f'{HEAD}"\\u001b[31mred" = 1\ngrad = "\\u001b[2J"\n'))


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(
        PlanError, match=r"none.toml does not exist; write a plan to begin with by: ampwise plan show --toml"
    ):
        load_plan(tmp_path / "none.toml")
    with pytest.raises(PlanError, match=f"^{re.escape(str(tmp_path))} is a folder; name a plan file in it"):
        load_plan(tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b'version = 1\ndefault = "\xff"')
    with pytest.raises(PlanError, match=r"bytes.toml is not a plan: it is not UTF-8 text \(byte 23\)"):
        load_plan(tmp_path / "bytes.toml")
    with pytest.raises(PlanError, match="cannot be read"):
        load_plan("a\0.toml")


def test_a_file_lies_over_what_it_includes(tmp_path):
    (tmp_path / "team").mkdir()
    (tmp_path / "team" / "base.toml").write_text(
        'version = 1\ndefault = "bf16"\ninclude = ["more.toml"]\nlists = "stock"\n'
        '[[rule]]\nmodule = "a"\ncompute = "fp32"\n[[rule]]\nop = "softmax"\ncompute = "fp32"\n'
    )
    (tmp_path / "team" / "more.toml").write_text('version = 1\n[[rule]]\nmodule = "b"\ncompute = "fp32"\n')
    (tmp_path / "plan.toml").write_text(
        f'{HEAD}include = ["team/base.toml"]\n[[rule]]\nop = "nn.Softmax"\ncompute = "fp16"\n'
    )
    plan = load_plan(tmp_path / "plan.toml")
    assert (plan.default, plan.lists) == ("fp16", Lists.STOCK)
    assert [(rule.place(), rule.compute) for rule in plan.rules] == [
        ("b", "fp32"),
        ("a", "fp32"),
        ("nn.Softmax", "fp16"),
    ]


def test_a_plan_may_take_its_default_from_what_it_includes_and_presets_by_name():
    plan = parse_plan('version = 1\ninclude = ["t5"]')
    assert plan.default == "fp16"
    assert plan.resolve("encoder.block.0.layer.1.DenseReluDense.wo").compute == "fp32"
    assert plan.resolve("encoder.block.0.layer.1.DenseReluDense.wi").compute == "fp16"


def test_mistakes_in_several_files_are_named_together(tmp_path):
    (tmp_path / "one.toml").write_text('version = 1\ngrad = "x"\n')
    (tmp_path / "two.toml").write_text("version =")
    lines = mistakes(f'{HEAD}include = ["one.toml", "two.toml", "three.toml"]\noutput = "y"', folder=tmp_path)
    assert [line.split(":")[0].replace(str(tmp_path), "") for line in lines] == [
        "/two.toml is not valid TOML",
        "/three.toml does not exist; write a plan to begin with by",
        "the plan",
        "  output",
        "/one.toml",
        "  grad",
    ]


def test_files_that_include_each_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.toml").write_text(f'{HEAD}include = ["b.toml"]')
    (tmp_path / "b.toml").write_text('version = 1\ninclude = ["./a.toml"]')
    with pytest.raises(
        PlanError, match=r'b.toml: 1 mistake\n  include: "./a.toml" leads back to itself: a.toml -> b.toml -> a'
    ):
        load_plan(tmp_path / "a.toml")
    (tmp_path / "self.toml").write_text(f'{HEAD}include = ["self.toml"]')
    with pytest.raises(PlanError, match=r"leads back to itself: self.toml -> self.toml"):
        load_plan("self.toml")


def test_one_file_included_twice_is_no_cycle(tmp_path):
    (tmp_path / "base.toml").write_text('version = 1\n[[rule]]\nmodule = "a"\ncompute = "fp32"\n')
    for name in ("one", "two"):
        (tmp_path / f"{name}.toml").write_text('version = 1\ninclude = ["base.toml"]\n')
    assert len(parse_plan(f'{HEAD}include = ["one.toml", "two.toml"]', folder=tmp_path).rules) == 1


def test_json_is_told_from_toml(tmp_path):
    (tmp_path / "plan.json").write_text('{"version": 1, "default": "fp16"}')
    with pytest.raises(PlanError, match="it looks like JSON, and plans are TOML: ampwise plan show --toml"):
        load_plan(tmp_path / "plan.json")


def test_a_byte_order_mark_is_no_part_of_a_plan(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_bytes(b'\xef\xbb\xbfversion = 1\r\ndefault = "bf16"\r\n')
    assert load_plan(path) == Plan(default="bf16")


def test_a_file_without_end_is_refused():
    with pytest.raises(PlanError, match="/dev/zero is not a plan: it is longer than 16 MiB"):
        load_plan("/dev/zero")


def test_files_that_lead_on_and_on_are_refused(tmp_path):
    for number in range(100):
        (tmp_path / f"{number}.toml").write_text(f'version = 1\ninclude = ["{number + 1}.toml"]\n')
    with pytest.raises(PlanError, match=r'31.toml: 1 mistake\n  include: "32.toml" is more than 32 files deep$'):
        load_plan(tmp_path / "0.toml")


def test_a_file_is_read_once_however_many_include_it(tmp_path, monkeypatch):
    for number in range(25):
        text = f'version = 1\ninclude = ["{number + 1}.toml", "./{number + 1}.toml"]\n'
        (tmp_path / f"{number}.toml").write_text(text)
    (tmp_path / "25.toml").write_text('version = 1\ndefault = "bf16"\n')
    num_reads, parse = [], tomllib.loads
    monkeypatch.setattr(tomllib, "loads", lambda text: num_reads.append(0) or parse(text))
    assert load_plan(tmp_path / "0.toml") == Plan(default="bf16")
    assert len(num_reads) == 26


def test_a_cycle_is_all_that_is_told_where_a_default_may_be_in_it(tmp_path):
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / f"{name}.toml").write_text(f'version = 1\ninclude = ["{other}.toml"]\n')
    with pytest.raises(PlanError) as raised:
        load_plan(tmp_path / "a.toml")
    assert "default" not in str(raised.value)
