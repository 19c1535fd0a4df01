"""What was predicted beside what this machine's GPU says, allocated and reserved; the errors are recorded."""

import json
import subprocess
import sys

import pytest

SCRIPT = """\
import sys
import torch
from imagining import ResNet
from torch import nn

name, precision = sys.argv[1:]
if name == "mlp":
    layers = [nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 4096)]
    model, x = nn.Sequential(*layers), torch.zeros(512, 4096)
elif name == "resnet50":
    model, x = ResNet(), torch.zeros(32, 3, 224, 224)
elif name == "gpt2":
    from transformers import GPT2Config, GPT2LMHeadModel
    model, x = GPT2LMHeadModel(GPT2Config(use_cache=False)), torch.zeros(4, 1024, dtype=torch.long)
else:
    from transformers import BertConfig, BertForMaskedLM
    model, x = BertForMaskedLM(BertConfig()), torch.zeros(8, 512, dtype=torch.long)
model, x = model.cuda(), x.cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=precision == "bf16"):
        out = model(x)
        loss = out.float().square().mean() if torch.is_tensor(out) else out.logits.float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
"""


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["mlp", "resnet50", "gpt2", "bert"])
def test_predicted_and_real(name, precision, tmp_path, request, record_property):
    import torch

    script = tmp_path / "train.py"
    script.write_text(f"import sys\nsys.path.append({str(request.config.rootpath / 'tests' / 'helpers')!r})\n{SCRIPT}")
    real = subprocess.run([sys.executable, script, name, precision], capture_output=True, text=True, check=True)
    allocated, reserved = map(int, real.stdout.split()[-2:])
    device = ("--device", torch.cuda.get_device_name())
    command = [sys.executable, "-m", "ampwise", "estimate", *device, "--json", script, name, precision]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    predicted = json.loads(done.stdout)
    errors = predicted["allocated_bytes"] / allocated - 1, predicted["reserved_bytes"] / reserved - 1
    record_property("allocated_error", errors[0])
    record_property("reserved_error", errors[1])
    assert max(map(abs, errors)) <= 0.03
