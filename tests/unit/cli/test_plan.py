import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from ampwise._base.errors import PlanError
from ampwise.cli.plan import command
from ampwise.plan.file import parse_plan
from ampwise.plan.presets import presets

PLAN = """version = 1
default = "fp16"
parameters = "bf16"
updates = "master"
grad = "bf16"
output = "fp32"
[[rule]]
module = "layers.*.wo"
compute = "fp32"
because = "overflows in fp16: amax 8.1e4 at step 3"
[[rule]]
op = "softmax"
module = "*.attn"
compute = "fp32"
output = "bf16"
"""


@pytest.fixture
def plan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "plan.toml").write_text(PLAN)
    return "plan.toml"


def ran(*arguments):
    return CliRunner().invoke(command, list(arguments), standalone_mode=False)


def test_show_says_all_that_the_plan_says(plan):
    assert ran("show", plan).output.splitlines() == [
        "plan.toml",
        "  default     fp16, gradients in bf16; results of the model in fp32",
        "  parameters  bf16, updates made on fp32 master weights",
        "  memory      16 bytes a parameter with AdamW: weight 2, gradient 2, master 4,",
        "              state 8",
        "  lists       CUDA's on every device, of the installed torch: not pinned (torch",
        '              = "2.13" pins them)',
        "  rules       the last that holds at a place decides there",
        "  [0]  layers.*.wo: fp32",
        "         overflows in fp16: amax 8.1e4 at step 3",
        "  [1]  softmax in *.attn: fp32, output bf16",
    ]


def test_show_as_json(plan):
    document = json.loads(ran("show", plan, "--json").output)
    assert document["plan"]["rules"][0]["module"] == "layers.*.wo"
    assert (document["pinned_torch"], document["installed_torch"]) == (None, "2.13")


@pytest.mark.parametrize("name", presets())
def test_every_preset_is_shown_within_the_terminal_and_printed_as_a_plan_that_pins_its_lists(plan, name):
    lines = ran("show", name).output.splitlines()
    assert lines[0].startswith(f"{name}: {presets()[name].about} (")
    assert max(map(len, lines[1:])) <= 80
    text = ran("show", "--toml", name).output
    assert parse_plan(text).rules == presets()[name].plan.rules
    assert parse_plan(text).torch == "2.13"


def test_check(plan, tmp_path):
    assert ran("check", plan).output.splitlines() == [
        "plan.toml: no mistakes; 2 rules, fp16 elsewhere",
        'its cast lists are not pinned: torch = "2.13" keeps an upgrade from changing them',
    ]
    assert json.loads(ran("check", plan, "--json").output)["num_rules"] == 2
    assert ran("check", "bf16").output == "bf16: no mistakes; 0 rules, bf16 elsewhere\n"
    (tmp_path / "wrong.toml").write_text('version = 1\ndefault = "bf61"\nlist = "cuda"')
    result = ran("check", "wrong.toml")
    assert isinstance(result.exception, PlanError)
    assert str(result.exception).startswith("wrong.toml: 2 mistakes\n  list: is not a key of a plan; did you mean")


def test_diff(plan, tmp_path):
    changed = PLAN.replace('default = "fp16"', 'default = "bf16"').replace('module = "layers.*.wo"', 'module = "head"')
    (tmp_path / "new.toml").write_text(changed.replace('output = "bf16"', 'output = "fp16"'))
    result = ran("diff", plan, "new.toml")
    assert result.return_value == 1
    assert result.output.splitlines() == [
        "plan.toml -> new.toml",
        "  default: fp16 -> bf16",
        "  -    layers.*.wo: fp32",
        "         overflows in fp16: amax 8.1e4 at step 3",
        "  +    head: fp32",
        "         overflows in fp16: amax 8.1e4 at step 3",
        "  -    softmax in *.attn: fp32, output bf16",
        "  +    softmax in *.attn: fp32, output fp16",
    ]
    document = json.loads(ran("diff", plan, "new.toml", "--json").output)
    assert document["keys"] == [{"key": "default", "before": "fp16", "after": "bf16"}]


def test_equal_plans(plan):
    result = ran("diff", plan, plan)
    assert (result.return_value, result.output) == (0, "plan.toml and plan.toml are the same plan\n")


def test_list_names_every_preset_with_its_sources(plan):
    text = ran("list").output
    assert max(map(len, text.splitlines())) <= 80
    assert all(f"  {name} " in text for name in presets())
    assert [row["name"] for row in json.loads(ran("list", "--json").output)] == list(presets())


def test_escapes_in_a_plan_do_not_reach_the_terminal(plan, tmp_path):
    (tmp_path / "odd.toml").write_text(PLAN.replace("layers.", "\\u001b[31mlay").replace("overflows", "\\u001b[2J\\n"))
    assert "\x1b" not in ran("show", "odd.toml").output
    assert "\x1b" not in ran("diff", plan, "odd.toml").output


def test_torch_is_left_out(plan):
    code = (
        "import sys; from ampwise.cli.main import main; status = main(sys.argv[1:]); "
        "sys.exit(status or 'torch' in sys.modules)"
    )
    for arguments in (["show", plan], ["check", plan], ["diff", plan, plan], ["list"]):
        subprocess.run([sys.executable, "-c", code, "plan", *arguments], check=True, stdout=subprocess.DEVNULL)


def test_an_option_of_the_script_without_dashes_is_told_where_it_belongs(plan):
    result = ran("show", plan, "train.py", "--lr", "3")
    assert result.exception.format_message() == (
        "No such option: --lr; a script and its options stand behind --: ampwise plan show PLAN -- train.py --lr ..."
    )
