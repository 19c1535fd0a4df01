"""Where ``--show-code`` has no lines to add, and the note that it prints instead."""

import pytest

from shown import BF16, PRECISIONS, SCRIPTS, added, loop, note, show


def test_fp32_needs_nothing():
    assert "needs no lines" in note(loop("model(x).mean().backward()"), "fp32")


def test_tf32_is_one_switch():
    text = loop("loss = model(x).mean()", "loss.backward()", "optimizer.step()")
    assert added(text, "tf32") == ['torch.set_float32_matmul_precision("high")']


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("with torch.autocast('cuda'): loss = model(x).mean()", "line 7: the script already uses torch.autocast"),
        ("scaler = torch.cuda.amp.GradScaler()", "torch.cuda.amp.GradScaler"),
        ("with step.autocast(): loss = model(x).mean()", "step.autocast"),
        ("import apex; apex.amp.initialize(model, optimizer)", "apex.amp.initialize"),
        ("import ampwise; step = ampwise.TrainStep(optimizer)", "ampwise.TrainStep"),
    ],
)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_scripts_own_amp_is_left_alone(line, what, precision):
    assert what in note(loop(line, "loss.backward()", "optimizer.step()"), precision)


def test_a_model_cast_whole_is_named():
    assert "line 7: the whole model is cast with .half()" in note(loop("model.half()", "model(x).mean().backward()"))


@pytest.mark.parametrize(
    ("text", "bf16", "fp16"),
    [
        (
            "import lightning as L\nL.Trainer(max_epochs=3).fit(model)\n",
            'L.Trainer(max_epochs=3, precision="bf16-mixed").fit(model)',
            'L.Trainer(max_epochs=3, precision="16-mixed").fit(model)',
        ),
        (
            "import pytorch_lightning as pl\ntrainer = pl.Trainer()\n",
            'trainer = pl.Trainer(precision="bf16-mixed")',
            'trainer = pl.Trainer(precision="16-mixed")',
        ),
        (
            "from transformers import TrainingArguments\nTrainingArguments(\n    'out',\n    num_train_epochs=1,\n)\n",
            "num_train_epochs=1, bf16=True,",
            "num_train_epochs=1, fp16=True,",
        ),
        (
            "from accelerate import Accelerator\na = Accelerator()\na.backward(loss)\nopt.step()\n",
            'a = Accelerator(mixed_precision="bf16")',
            'a = Accelerator(mixed_precision="fp16")',
        ),
    ],
)
def test_a_framework_takes_the_precision_as_an_argument(text, bf16, fp16):
    assert added(text, "bf16") == [bf16]
    assert added(text, "fp16") == [fp16]
    assert "takes the precision as" in show(text).notes[0]


def test_a_frameworks_own_choice_stays():
    text = "import lightning as L\nL.Trainer(precision='32').fit(model)\n"
    assert note(text) == 'line 2: Lightning is already given precision; for bf16 pass precision="bf16-mixed"'


def test_a_lightning_module_without_its_trainer():
    text = "import lightning as L\nclass M(L.LightningModule):\n    def training_step(self, b): return self.net(b)\n"
    assert 'imports Lightning: pass precision="bf16-mixed" to Trainer or Fabric where it is made' in note(text)


def test_a_script_without_a_training_step():
    assert "no backward() in this file" in note("import torch\nprint(torch.ones(3).sum())\n")
    assert BF16 in note("x = 1\n")


def test_a_loss_that_comes_from_elsewhere():
    shown = show("def backward(loss, optimizer):\n    loss.backward()\n    optimizer.step()\n")
    assert shown.diff == ""
    assert "line 2: what computes this loss was not found in this file" in shown.notes[0]


def test_fp16_where_no_optimizer_steps():
    text = loop("model(x).mean().backward()", "for p in model.parameters(): p.data -= 0.1 * p.grad")
    assert "no optimizer step was found" in note(text, "fp16")
    assert added(text)[0] == BF16


def test_fp16_under_a_closure():
    assert "refuses step(closure)" in note((SCRIPTS / "closure.py").read_text(), "fp16")


def test_a_loss_within_a_larger_expression():
    shown = show(loop("[model(x).mean().backward() for x in y]", "optimizer.step()"))
    assert "line 7: computes a loss within a larger expression" in shown.notes[0]


def test_bare_bce_is_refused_on_cuda_and_named():
    text = loop("loss = F.binary_cross_entropy(model(x), y)", "loss.backward()", "optimizer.step()")
    assert show(text).notes == ()
    assert "line 7: torch.nn.functional.binary_cross_entropy refuses" in show(text, "bf16", "cuda").notes[0]


def test_a_gradient_penalty_is_named_in_fp16():
    text = loop(
        "out = model(x)",
        "g = torch.autograd.grad(out.sum(), x, create_graph=True)[0]",
        "loss = out.mean() + g.norm()",
        "loss.backward()",
        "optimizer.step()",
    )
    assert "line 8: torch.autograd.grad is not scaled" in show(text, "fp16").notes[0]
    assert show(text).notes == ()
