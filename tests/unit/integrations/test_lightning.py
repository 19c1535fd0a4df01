"""Lightning's loops with our precision, beside Lightning's own plugin: equal where both can, better where it fails."""

import logging
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ampwise._base.errors import CannotRunError, UsageError
from ampwise.plan.plan import Plan, Rule
from ampwise.runtime.scaling.loss_scale import DynamicLossScale

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.leaves_behind("Lightning's own hooks of warnings")]
pl = pytest.importorskip("lightning.pytorch")
from lightning.fabric import Fabric  # noqa: E402 - after the package is known to be there
from lightning.fabric.plugins import MixedPrecision as FabricMixedPrecision  # noqa: E402
from lightning.pytorch.plugins import MixedPrecision  # noqa: E402

from ampwise.integrations.lightning import AmpwiseFabricPrecision, AmpwisePrecision  # noqa: E402

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
SCALE = 2.0**8


def in_fp16():
    return AmpwisePrecision("fp16", loss_scale=DynamicLossScale(scale=SCALE))


class Net(pl.LightningModule):
    def __init__(self, make=torch.optim.AdamW, bad_batch=None, **options):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
        self.make, self.bad_batch, self.options = make, bad_batch, options
        self.dtypes = set()

    def training_step(self, batch, index):
        x, y = batch
        if index == self.bad_batch:
            x = x * 3e38
        out = self.net(x)
        self.dtypes.add(out.dtype)
        return nn.functional.mse_loss(out.float(), y)

    def validation_step(self, batch, _):
        self.log("val", nn.functional.mse_loss(self.net(batch[0]).float(), batch[1]))

    def configure_optimizers(self):
        return self.make(self.parameters(), lr=0.01, **self.options)


def data():
    torch.manual_seed(1)
    return DataLoader(TensorDataset(torch.randn(24, 4), torch.randn(24, 1)), batch_size=4)


def fit(plugin, net=None, *, folder=None, max_epochs=2, ckpt_path=None, **options):
    trainer = pl.Trainer(
        plugins=[plugin],
        accelerator="cpu",
        max_epochs=max_epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    net = net or Net()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(net, data(), data(), ckpt_path=ckpt_path)
    if folder is not None:
        trainer.save_checkpoint(folder)
    return net


def lightnings(precision="16-mixed"):
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE) if precision == "16-mixed" else None
    return MixedPrecision(precision, "cpu", scaler)


def equal(one, other):
    mine, its = one.state_dict(), other.state_dict()
    return mine.keys() == its.keys() and all(torch.equal(mine[name], its[name]) for name in mine)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gradient_clip_val": 0.1},
        {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
        {"accumulate_grad_batches": 4, "gradient_clip_val": 0.1},
    ],
    ids=["plain", "norm", "value", "accumulated"],
)
@pytest.mark.parametrize(("ours", "its"), [("fp16", "16-mixed"), ("bf16", "bf16-mixed")])
def test_it_trains_as_lightnings_own_bit_for_bit(options, ours, its):
    plugin = in_fp16() if ours == "fp16" else AmpwisePrecision(ours)
    assert equal(fit(plugin, **options), fit(lightnings(its), **options))


def test_a_skipped_step_leaves_the_statistics_as_they_were():
    ours, its = fit(in_fp16(), Net(bad_batch=2)), fit(lightnings(), Net(bad_batch=2))
    assert not its.net[1].running_var.isfinite().all(), "Lightning's own plugin has the fault"
    assert ours.net[1].running_var.isfinite().all()
    assert all(one.isfinite().all() for one in ours.parameters())


class Gan(pl.LightningModule):
    """Two optimizers stepped by hand; the second's pass overflows in the third batch."""

    def __init__(self, steps_at_the_end):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        self.automatic_optimization, self.steps_at_the_end = False, steps_at_the_end

    def training_step(self, batch, index):
        first, second = self.optimizers()
        self.manual_backward(self.one(batch[0]).mean())
        if not self.steps_at_the_end:
            first.step()
        self.manual_backward(self.two(batch[0] * (3e38 if index == 2 else 1.0)).mean())
        if self.steps_at_the_end:
            first.step()
        second.step()
        first.zero_grad()
        second.zero_grad()

    def configure_optimizers(self):
        return [torch.optim.SGD(one.parameters(), lr=0.01) for one in (self.one, self.two)]


@pytest.mark.parametrize("steps_at_the_end", [False, True])
def test_a_second_optimizers_skipped_step_leaves_the_statistics_too(steps_at_the_end):
    net = fit(in_fp16(), Gan(steps_at_the_end))
    assert net.two[1].running_mean.isfinite().all()
    assert all(one.isfinite().all() for one in net.parameters())


def test_a_pass_for_statistics_only_steps_nothing():
    averaging = pl.callbacks.StochasticWeightAveraging(1e-2, swa_epoch_start=1)
    net = fit(in_fp16(), max_epochs=3, callbacks=[averaging])
    assert net.net[1].running_mean.isfinite().all()


def test_a_fused_optimizer_is_clipped():
    with pytest.raises(RuntimeError, match="does not allow for gradient clipping"):
        fit(lightnings(), Net(fused=True), gradient_clip_val=0.1)
    fused = fit(in_fp16(), Net(fused=True), gradient_clip_val=0.1)
    plain = fit(in_fp16(), Net(), gradient_clip_val=0.1)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(fused.parameters(), plain.parameters(), strict=True))


def test_a_resumed_run_is_the_one_that_never_stopped(tmp_path):
    whole = fit(in_fp16(), max_epochs=3)
    fit(in_fp16(), max_epochs=1, folder=tmp_path / "a.ckpt")
    resumed = fit(in_fp16(), Net(), max_epochs=3, ckpt_path=tmp_path / "a.ckpt")
    assert equal(whole, resumed)


def test_the_scale_goes_through_the_checkpoint(tmp_path):
    fit(in_fp16(), Net(bad_batch=0), max_epochs=1, folder=tmp_path / "a.ckpt")
    state = torch.load(tmp_path / "a.ckpt", weights_only=False)["AmpwisePrecision"]
    assert state["scale"] == SCALE / 2
    plugin = in_fp16()
    fit(plugin, Net(), max_epochs=2, ckpt_path=tmp_path / "a.ckpt")
    assert plugin.loop.state_dict()["scale"] == SCALE / 2


def test_auto_takes_what_the_machine_is_good_at_and_says_why():
    plugin = AmpwisePrecision()
    net = fit(plugin, max_epochs=1)
    assert plugin.loop.choice.precision in {"fp32", "bf16"}
    assert plugin.loop.choice.reason
    assert net.dtypes == {torch.float32 if plugin.loop.choice.precision == "fp32" else torch.bfloat16}


def test_a_plan_is_put_on_the_model_and_taken_off():
    plan = Plan(default="bf16", rules=(Rule(module="net.3", compute="fp32"),))
    plugin = AmpwisePrecision(plan=plan)
    net = Net()
    before = [module.forward for module in net.modules()]
    inner = set()
    net.net[0].register_forward_hook(lambda _module, _inputs, out: inner.add(out.dtype))
    fit(plugin, net, max_epochs=1)
    assert inner == {torch.bfloat16}, "the plan's default holds though nobody calls the model's own forward"
    assert net.dtypes == {torch.float32}
    assert [module.forward for module in net.modules()] == before
    assert torch.compiler.config.cache_key_tag == "", "the cast lists are torch's again, though the model lives"


def test_a_plans_rules_on_operators_hold_in_the_training_step():
    class Lossy(Net):
        def training_step(self, batch, index):
            loss = super().training_step(batch, index)
            self.dtypes.add(torch.mm(batch[0], batch[0].t()).dtype)
            return loss

    for rules, dtype in (((), torch.bfloat16), ((Rule(op="matmul", compute="fp32"),), torch.float32)):
        net = Lossy()
        fit(AmpwisePrecision(plan=Plan(default="bf16", rules=rules)), net, max_epochs=1)
        assert net.dtypes == {torch.bfloat16, dtype}


def test_a_plan_that_does_not_fit_the_model_is_refused_before_the_first_step():
    net = Net()
    with pytest.raises(CannotRunError, match="fp64"):
        fit(AmpwisePrecision(plan=Plan(default="fp64")), net, max_epochs=1)
    assert not net.dtypes


def test_a_plan_that_keeps_updates_trains_in_its_format():
    net = Net().bfloat16()
    before = net.net[0].weight.detach().clone()
    fit(AmpwisePrecision(plan="bf16-pure"), net, max_epochs=1)
    assert net.net[0].weight.dtype is torch.bfloat16
    assert not torch.equal(net.net[0].weight, before)
    assert not any("forward" in vars(module) for module in net.modules())


def test_an_optimizer_with_closures_is_refused_with_a_loss_scale_only():
    with pytest.raises(UsageError, match="train it in bf16 or fp32"):
        fit(in_fp16(), Net(torch.optim.LBFGS), max_epochs=1)
    fit(AmpwisePrecision("bf16"), Net(torch.optim.LBFGS), max_epochs=1)


def test_what_is_no_precision_is_refused_at_once():
    with pytest.raises(UsageError, match="bf61"):
        AmpwisePrecision("bf61")
    with pytest.raises(UsageError, match="fp16-saef"):
        AmpwisePrecision(plan="fp16-saef")


# ------------------------------------------------------------------ Fabric


def fabric_fit(plugin, *, bad_batch=None, clip=None):
    fabric = Fabric(accelerator="cpu", plugins=[plugin])
    net = Net()
    model, optimizer = fabric.setup(net.net, net.configure_optimizers())
    for index, (x, y) in enumerate(data()):
        out = model(x * 3e38 if index == bad_batch else x)
        assert out.dtype is torch.float32
        fabric.backward(nn.functional.mse_loss(out, y))
        if clip:
            fabric.clip_gradients(model, optimizer, max_norm=clip)
        optimizer.step()
        optimizer.zero_grad()
    return net


@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize(("ours", "its"), [("fp16", "16-mixed"), ("bf16", "bf16-mixed")])
def test_fabric_trains_as_with_lightnings_own(ours, its, clip):
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE) if its == "16-mixed" else None
    scale = DynamicLossScale(scale=SCALE) if its == "16-mixed" else None
    mine = fabric_fit(AmpwiseFabricPrecision(ours, loss_scale=scale), clip=clip)
    assert equal(mine, fabric_fit(FabricMixedPrecision(its, "cpu", scaler), clip=clip))


def test_fabrics_skipped_step_leaves_the_statistics_too():
    net = fabric_fit(AmpwiseFabricPrecision("fp16", loss_scale="diffusion"), bad_batch=2)
    assert net.net[1].running_var.isfinite().all()


def test_fabric_takes_a_plan():
    plugin = AmpwiseFabricPrecision(plan=Plan(default="bf16", rules=(Rule(module="3", compute="fp32"),)))
    net = fabric_fit(plugin)
    assert "forward" in vars(net.net[3])
    plugin.loop.close()
    assert "forward" not in vars(net.net[3])
