"""``ampwise estimate`` on scripts as users write them, and on those that cannot be estimated."""

import json
import os

import pytest

import ampwise
from warm import fresh, python

TRAIN = """\
import argparse
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
args = parser.parse_args()
device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)).to(device)
optimizer = torch.optim.AdamW(net.parameters())
for step in range(1000):
    x = torch.randn(args.batch_size, 1024, device=device)
    loss = nn.functional.cross_entropy(net(x), torch.zeros(args.batch_size, dtype=torch.long, device=device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, loss.item())
    torch.save(net.state_dict(), "best.pt")
"""


def estimate(folder, *arguments, script=TRAIN, by=python):
    (folder / "train.py").write_text(script)
    return by("-m", "ampwise", "estimate", *arguments, cwd=folder)


def test_a_script_is_estimated_in_two_precisions_and_writes_nothing(tmp_path):
    options = ["--device", "t4", "--precision", "fp32,bf16", "--json"]
    done = estimate(tmp_path, *options, "train.py", "--batch-size", "4096", by=fresh)
    document = json.loads(done.stdout)
    assert done.returncode == 0
    fp32, bf16 = document["variants"]
    assert (fp32["fits"], bf16["fits"]) == (True, True)
    assert bf16["by_category"]["activation"] < fp32["by_category"]["activation"]
    assert fp32["by_category"]["parameter"] == bf16["by_category"]["parameter"] == 4_194_304 + 4096 + 40_960 + 512
    assert fp32["peak_line"].startswith("train.py:")
    assert not (tmp_path / "best.pt").exists()


@pytest.mark.slow
def test_the_largest_batch_fits_and_one_more_does_not(tmp_path):
    found = estimate(tmp_path, "--memory", "600MB", "--find-batch", "--batch-size", "--json", "train.py")
    assert found.returncode == 0
    largest = json.loads(found.stdout)
    assert largest["fits"]
    assert largest["batch_size"] > 1000
    more = str(largest["batch_size"] + 1)
    assert estimate(tmp_path, "--memory", "600MB", "train.py", "--batch-size", more).returncode == 1


def test_what_does_not_fit_ends_with_status_1_and_what_to_change(tmp_path):
    done = estimate(tmp_path, "--memory", "600MB", "train.py", "--batch-size", "65536")
    assert done.returncode == 1
    assert "does not fit" in done.stdout
    assert "half the batch" in done.stdout


HF = """\
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

class Words(Dataset):
    def __len__(self): return 64
    def __getitem__(self, _):
        return {"input_ids": torch.zeros(64, dtype=torch.long), "labels": torch.zeros(64, dtype=torch.long)}

sizes = dict(n_layer=2, n_embd=64, n_head=2, vocab_size=500, n_positions=64, use_cache=False)
settings = TrainingArguments(
    output_dir="out", per_device_train_batch_size=8, max_steps=5, report_to=[], fp16=True, save_steps=1,
    gradient_checkpointing=True,
)
Trainer(model=GPT2LMHeadModel(GPT2Config(**sizes)), args=settings, train_dataset=Words()).train()
"""
LIGHTNING = """\
import lightning
import torch
from torch import nn

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(64, 256)
    def training_step(self, batch, _):
        loss = self.net(batch[0]).square().mean()
        self.log("loss", loss, prog_bar=True)
        return loss
    def configure_optimizers(self): return torch.optim.AdamW(self.parameters())

data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(640, 64)), batch_size=32)
lightning.Trainer(max_epochs=1, precision="16-mixed", gradient_clip_val=1.0).fit(Net(), data)
"""
ACCELERATE = """\
import torch
from accelerate import Accelerator
from torch import nn

accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
net = nn.Linear(64, 256)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(640, 64)), batch_size=32)
net, optimizer, data = accelerator.prepare(net, torch.optim.AdamW(net.parameters()), data)
for (x,) in data:
    with accelerator.accumulate(net):
        loss = net(x).square().mean()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.save_state("state")
"""
LIBRARIES = {"transformers": HF, "lightning": LIGHTNING, "accelerate": ACCELERATE}


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 4])
@pytest.mark.parametrize("name", LIBRARIES)
def test_a_librarys_trainer_is_estimated_and_nothing_is_written(name, world_size, tmp_path):
    pytest.importorskip(name)
    processes = () if world_size == 1 else ("--world-size", str(world_size))
    options = ("--device", "a100-40gb", "--precision", "fp32,bf16", *processes, "--json")
    done = estimate(tmp_path, *options, "train.py", script=LIBRARIES[name])
    made = json.loads(done.stdout)
    assert made["precision"] == "own"
    assert made["fits"]
    assert not made["is_lower_bound"]
    assert any("own mixed precision" in text for text in made["assumptions"])
    assert any("one process of 4" in text for text in made["assumptions"]) == (world_size == 4)
    # at least the reducer's buckets
    parameters, gradients = (made["by_category"].get(one, 0) for one in ("parameter", "gradient"))
    assert world_size == 1 or gradients >= 0.9 * parameters
    assert [one.name for one in tmp_path.iterdir()] == ["train.py"]


DISTRIBUTED = """\
import os
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
net = nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(8)]).cuda()
if sys.argv[1] == "fsdp":
    for layer in net:
        fully_shard(layer)
    fully_shard(net)
else:
    net = nn.parallel.DistributedDataParallel(net, device_ids=[0])
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(5):
    net(torch.randn(64, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_one_process_of_several(kind, tmp_path):
    options = ("--device", "h100-80gb", "--precision", "bf16", "--world-size", "4", "--json")
    made = json.loads(estimate(tmp_path, *options, "train.py", kind, script=DISTRIBUTED).stdout)
    layers = 8 * 1024 * 1024 * 4
    sizes = made["by_category"]
    assert sizes["parameter"] == (layers if kind == "ddp" else layers // 4)
    assert sizes["optimizer_state"] == pytest.approx(2 * sizes["parameter"], rel=0.01)
    assert not made["is_lower_bound"]


def test_a_plan_is_followed(tmp_path):
    (tmp_path / "plan.toml").write_text(
        'version = 1\ndefault = "bf16"\n[[rule]]\nmodule = "0"\ncompute = "fp32"\nbecause = "x"\n'
    )
    options = ("--device", "t4", "--precision", "fp32,bf16,./plan.toml,bf16-pure", "--json", "train.py")
    fp32, bf16, plan, pure = json.loads(estimate(tmp_path, *options, "--batch-size", "4096").stdout)["variants"]
    assert fp32["allocated_bytes"] >= plan["allocated_bytes"] > bf16["allocated_bytes"]
    assert fp32["by_category"]["activation"] >= plan["by_category"]["activation"] > bf16["by_category"]["activation"]
    assert 2 * pure["by_category"]["parameter"] == pytest.approx(bf16["by_category"]["parameter"], rel=0.01)
    assert any("rules[0], fp32 for 0: 0" in text for text in plan["assumptions"])


WRONG = {
    ("--plan", "bf61", "train.py"): 'did you mean "bf16"',
    ("--plan", "fp8", "--precision", "bf16", "train.py"): "leave --precision out",
    ("--precision", "bf61,fp32", "train.py"): 'did you mean "bf16"',
    ("--params", "7e9", "--plan", "fp8"): "with --params",
    ("--params", "7e9", "--world-size", "4"): "--shards",
    ("--world-size", "0", "train.py"): "x>=1",
}


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_wrong_usage_is_said_in_a_line(arguments, tmp_path):
    done = estimate(tmp_path, *arguments)
    assert done.returncode == 2
    assert WRONG[arguments] in done.stderr
    assert "Traceback" not in done.stderr


BAD = {
    "on the CPU": ("net = torch.nn.Linear(3, 3)\nnet(torch.ones(3)).sum().backward()", "train.py:3", "on the CPU"),
    "never trains": ("torch.nn.Linear(3, 3).cuda()", "no training step found", ""),
    "a library": ("import flash_attn_that_is_not_here", "ModuleNotFoundError", "train.py:2", "install it here"),
    "waits": ("while torch.ones(3).cuda().sum().item() < 1:\n    pass", "train.py:", "--time-limit"),
    "a file": ("open('data.bin')", "data.bin", "train.py:2", "of the same shape"),
    "an argument": ("import argparse\nargparse.ArgumentParser().parse_args(['--x'])", "unrecognized", "train.py:3"),
    "too much": ("torch.zeros(10**14, dtype=torch.long)", "RuntimeError", "train.py:2"),
}


def test_what_cannot_be_estimated_is_said_in_a_line(tmp_path):
    code, *expected = BAD["a library"]
    done = estimate(tmp_path, "--device", "t4", "train.py", script=f"import torch\n{code}\n")
    assert done.returncode == 3
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("ampwise: ")
    for text in expected:
        assert text in done.stderr


@pytest.fixture(scope="module")
def predict():
    """What the command asks, with torch loaded once for all scripts."""
    from ampwise.estimate.gpu import gpu_spec
    from ampwise.estimate.predict import predicting

    with predicting(gpu_spec("t4"), time_limit_s=15) as predict:
        yield predict


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD)
def test_a_line_says_what_stands_in_the_way(name, tmp_path, predict):
    from ampwise.estimate.wanted import Wanted
    from ampwise.runner.script import Target

    code, *expected = BAD[name]
    script = tmp_path / "train.py"
    script.write_text(f"import torch\n{code}\n")
    with pytest.raises(ampwise.CannotRunError) as raised:
        predict(Target(path=str(script), module=None, argv=()), Wanted(name="fp32", compute="fp32"))
    assert "\n" not in str(raised.value)
    for text in expected:
        assert text in str(raised.value)


def test_an_operator_without_sizes_leaves_a_lower_bound(tmp_path):
    code = """\
import torch
net = torch.nn.EmbeddingBag(1000, 64, sparse=True).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    net(torch.zeros(4, 2, dtype=torch.long).cuda()).sum().backward()
    optimizer.step()
"""
    done = estimate(tmp_path, "--device", "t4", "train.py", script=code)
    assert done.returncode == 0
    text = " ".join(done.stdout.split())
    assert "at least" in text
    assert "it fits" not in text
    assert "sparse_coo" in text
    assert "train.py:5" in text
    assert "its 64,000 parameters take" in text


def test_a_function_is_estimated_in_a_process_of_its_own():
    import torch
    from torch import nn

    model = nn.Linear(512, 512)

    def step():
        net = model.cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net(torch.randn(64, 512, device="cuda")).sum().backward()
        optimizer.step()

    estimate = ampwise.estimate_memory(step, device="a100-40gb", precision="bf16")
    assert estimate.fits
    assert estimate.allocated_bytes > 2 * 512 * 512 * 4
    assert model.weight.device.type == "cpu"
    assert model.weight.grad is None
    assert estimate.remedies == ()

    def large_step():
        net = nn.Sequential(*[nn.Linear(512, 512) for _ in range(8)]).cuda()
        net(torch.randn(2**21, 512, device="cuda")).sum().backward()

    large = ampwise.estimate_memory(large_step, device="t4")
    assert large.fits is False
    assert 'mixed precision: precision="fp16"' in [one.what for one in large.remedies]
    with pytest.raises(ampwise.CannotRunError, match="ZeroDivisionError"):
        ampwise.estimate_memory(lambda: 1 / 0, device="a100-40gb")
    with pytest.raises(ampwise.CannotRunError, match="ended with status 4"):
        ampwise.estimate_memory(lambda: os._exit(4), device="a100-40gb")
    with pytest.raises(ampwise.UsageError, match="GPU known here"):
        ampwise.estimate_memory(step, device="a101-40gb")
    with pytest.raises(ampwise.UsageError, match="give a function"):
        ampwise.estimate_memory(3, device="a100-40gb")
    with pytest.raises(ampwise.UsageError, match="precision"):
        ampwise.estimate_memory(step, device="t4", precision="bf61")
    with pytest.raises(ampwise.PlanError, match='did you mean "fp16-safe"'):
        ampwise.estimate_memory(step, device="t4", plan="fp16-saef")
