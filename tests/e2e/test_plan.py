"""``ampwise plan`` at a script's own models."""

import json

import pytest

from warm import fresh, python

GAN = """
import sys
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.wo = nn.Linear(4, 12), nn.Linear(4, 4)
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.wo((q @ k.mT).softmax(-1) @ v)

print("arguments", sys.argv[1:])
generator, critic = nn.Sequential(Attention(), nn.LayerNorm(4)), nn.Linear(4, 1)
optimizer = torch.optim.SGD([*generator.parameters(), *critic.parameters()], 0.1)
torch.save(generator.state_dict(), "best.pt")
for step in range(1000):
    loss = critic(generator(torch.ones(2, 3, 4))).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
open("done", "w").close()
"""
PLAN = """version = 1
default = "fp16"
[[rule]]
module = "*.wo"
compute = "fp32"
[[rule]]
module = "critc"
compute = "bf16"
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "gan.py").write_text(GAN)
    (tmp_path / "plan.toml").write_text(PLAN)
    return tmp_path


def ran(folder, *arguments, by=python):
    return by("-m", "ampwise", "plan", *arguments, cwd=folder)


def test_show_says_what_holds_in_each_module_and_leaves_the_users_files_alone(folder):
    result = ran(folder, "show", "plan.toml", "--", "gan.py", "--lr", "3", by=fresh)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-2:] == [
        "  modules     5 in fp16, 1 in fp32",
        "    generator.0.wo  fp32 by rules[0] *.wo",
    ]
    assert result.stderr == 'ampwise: rules[1].module: "critc" matches no module; did you mean "critic"?\n'
    assert sorted(path.name for path in folder.iterdir()) == ["gan.py", "plan.toml"]


def test_check_finds_what_does_not_fit(folder):
    result = ran(folder, "check", "--json", "plan.toml", "-m", "--", "gan")
    assert result.returncode == 1, result.stderr
    document = json.loads(result.stdout)
    assert document["warnings"] == ['rules[1].module: "critc" matches no module; did you mean "critic"?']
    assert [(row["module"]["name"], row["resolved"]["compute"]) for row in document["modules"]] == [
        ("generator", "fp16"),
        ("generator.0", "fp16"),
        ("generator.0.qkv", "fp16"),
        ("generator.0.wo", "fp32"),
        ("generator.1", "fp16"),
        ("critic", "fp16"),
    ]


def test_a_presets_rules_for_other_models_are_one_line_and_no_misfit(folder):
    result = ran(folder, "check", "fp16-safe", "--", "gan.py")
    assert result.returncode == 0, result.stderr
    assert result.stderr == (
        'ampwise: no module for "*rotary*", "*.router", "*.gate", "*norm*", "*.vae": '
        "a preset has these rules for other models\n"
    )


@pytest.mark.parametrize(
    ("source", "status", "said"),
    [
        (
            "raise RuntimeError('no data')",
            3,
            "ampwise: the script failed before its model was called: RuntimeError: no data",
        ),
        ("print('done')", 3, "ampwise: the script calls no model in its first step"),
        (None, 2, "ampwise: can't open file"),
        ("model = (", 1, "  File "),
    ],
)
def test_a_script_without_a_model_is_told(folder, source, status, said):
    if source is not None:
        (folder / "gan.py").write_text(source)
    result = ran(folder, "show", "plan.toml", "--", "gan.py" if source is not None else "none.py")
    assert (result.returncode, result.stdout) == (status, "")
    assert result.stderr.startswith(said)


def test_a_script_has_no_place_beside_toml(folder):
    result = ran(folder, "show", "--toml", "plan.toml", "--", "gan.py")
    assert (result.returncode, result.stderr) == (
        2,
        "ampwise: --toml prints the plan alone; leave the script away\n",
    )
