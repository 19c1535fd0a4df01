"""Accelerate's own loop with our scaler and plans, beside the same steps written by hand."""

import pytest
import torch
from torch import nn

from ampwise._base.errors import UsageError
from ampwise.examine.watch import watch
from ampwise.plan.plan import Plan, Rule
from ampwise.runtime.scaling.scaler import GradScaler

pytestmark = pytest.mark.filterwarnings("ignore")
accelerate = pytest.importorskip("accelerate")
from accelerate.state import AcceleratorState  # noqa: E402 - after the package is known to be there
from accelerate.utils import GradScalerKwargs  # noqa: E402

from ampwise.integrations.accelerate import use_ampwise  # noqa: E402

SCALE = 2.0**8


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    """Accelerate's state is one for the process."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def accelerator_of(precision="fp16", **options):
    return accelerate.Accelerator(
        cpu=True, mixed_precision=precision, kwargs_handlers=[GradScalerKwargs(init_scale=SCALE)], **options
    )


def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def batches(bad=None):
    torch.manual_seed(1)
    data = [(torch.randn(4, 4), torch.randn(4, 1)) for _ in range(6)]
    return [(x * 3e38 if index == bad else x, y) for index, (x, y) in enumerate(data)]


def train(accelerator, model, optimizer, *, data=None, clip=None):
    for x, y in data or batches():
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.mse_loss(model(x).float(), y))
            if clip and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()


def by_hand(*, clip=None, window=1):
    model, optimizer = make()
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    for index, (x, y) in enumerate(batches(), 1):
        with torch.autocast("cpu", torch.float16):
            out = model(x)
        scaler.scale(nn.functional.mse_loss(out.float(), y) / window).backward()
        if index % window == 0:
            if clip:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return model


def equal(one, other):
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(mine, its) for mine, its in pairs)


@pytest.mark.parametrize(("clip", "window"), [(None, 1), (0.1, 1), (0.1, 2)])
def test_it_trains_as_by_hand_bit_for_bit(clip, window):
    accelerator = accelerator_of(gradient_accumulation_steps=window)
    model, optimizer = make()
    use_ampwise(accelerator, model)
    prepared = accelerator.prepare(model, optimizer)
    train(accelerator, *prepared, clip=clip)
    assert isinstance(accelerator.scaler, GradScaler)
    assert accelerator.scaler.get_scale() == SCALE
    assert equal(model, by_hand(clip=clip, window=window))


def two_optimizers(scaler_of, *, bad=None, steps=4):
    """A model's two halves with an optimizer each, clipped, in Accelerate's loop or by hand."""
    model, _ = make()
    halves = [torch.optim.SGD(model[:2].parameters(), lr=0.1), torch.optim.SGD(model[3:].parameters(), lr=0.1)]
    step = scaler_of(model, halves)
    for x, y in batches(bad=bad)[:steps]:
        step(x, y)
    return model


def in_accelerates_loop(model, halves):
    accelerator = accelerator_of()
    use_ampwise(accelerator, model)
    prepared, *optimizers = accelerator.prepare(model, *halves)

    def step(x, y):
        accelerator.backward(nn.functional.mse_loss(prepared(x).float(), y))
        accelerator.clip_grad_norm_(prepared.parameters(), 0.1)
        for optimizer in optimizers:
            optimizer.step()  # each calls update
        for optimizer in optimizers:
            optimizer.zero_grad()

    return step


def with_torch_alone(model, halves):
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)

    def step(x, y):
        with torch.autocast("cpu", torch.float16):
            out = model(x)
        scaler.scale(nn.functional.mse_loss(out.float(), y)).backward()
        for half in halves:
            scaler.unscale_(half)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        for half in halves:
            scaler.step(half)
        scaler.update()
        for half in halves:
            half.zero_grad()

    return step


def test_two_optimizers_that_are_clipped_together_train_as_by_hand():
    assert equal(two_optimizers(in_accelerates_loop), two_optimizers(with_torch_alone))


@pytest.mark.parametrize("bad", [0, 3])
def test_a_step_that_two_optimizers_skip_is_one_and_leaves_the_statistics(bad):
    model = two_optimizers(in_accelerates_loop, bad=bad)
    assert all(one.isfinite().all() for one in model.state_dict().values())
    without = two_optimizers(in_accelerates_loop, steps=bad)
    if bad == 3:
        assert equal(model, without)


def test_a_skipped_step_leaves_the_statistics_and_accelerate_knows_of_it():
    accelerator = accelerator_of()
    model, optimizer = make()
    use_ampwise(accelerator, model)
    model, optimizer = accelerator.prepare(model, optimizer)
    train(accelerator, model, optimizer, data=batches(bad=2)[:3])
    assert accelerator.optimizer_step_was_skipped
    assert accelerator.scaler.get_scale() == SCALE / 2
    assert all(one.isfinite().all() for one in model.state_dict().values())
    train(accelerator, model, optimizer, data=batches()[3:])
    assert not accelerator.optimizer_step_was_skipped


def test_a_stopped_run_goes_on_as_the_one_that_never_stopped(tmp_path):
    def begin():
        accelerator = accelerator_of()
        model, optimizer = make()
        use_ampwise(accelerator, model, loss_scale="headroom")
        return accelerator, *accelerator.prepare(model, optimizer)

    accelerator, whole, optimizer = begin()
    train(accelerator, whole, optimizer, data=batches()[:3])
    accelerator.save_state(str(tmp_path))
    train(accelerator, whole, optimizer, data=batches()[3:])
    scale = accelerator.scaler.get_scale()
    accelerator, resumed, optimizer = begin()
    accelerator.load_state(str(tmp_path))
    train(accelerator, resumed, optimizer, data=batches()[3:])
    assert equal(whole, resumed)
    assert accelerator.scaler.get_scale() == scale


def test_a_checkpoint_of_torchs_scaler_is_gone_on_from(tmp_path):
    accelerator = accelerator_of()
    model, optimizer = make()
    accelerator.scaler, accelerator.native_amp = torch.amp.GradScaler("cpu", init_scale=SCALE), True
    model, optimizer = accelerator.prepare(model, optimizer)
    train(accelerator, model, optimizer, data=batches(bad=0)[:1])
    accelerator.save_state(str(tmp_path))
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerator_of()
    model, optimizer = make()
    use_ampwise(accelerator, model)
    accelerator.prepare(model, optimizer)
    accelerator.load_state(str(tmp_path))
    assert accelerator.scaler.get_scale() == SCALE / 2


def test_a_plan_is_put_on_the_model_and_taken_off():
    accelerator = accelerator_of("no")
    model, optimizer = make()
    take_off = use_ampwise(accelerator, model, plan=Plan(default="bf16", rules=(Rule(module="3", compute="fp32"),)))
    assert accelerator.scaler is None
    seen = []
    model[0].register_forward_hook(lambda *call: seen.append(call[-1].dtype))
    model[3].register_forward_hook(lambda *call: seen.append(call[-1].dtype))
    prepared = accelerator.prepare(model, optimizer)
    train(accelerator, *prepared)
    assert set(seen[::2]) == {torch.bfloat16}
    assert set(seen[1::2]) == {torch.float32}
    take_off()
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_plan_may_be_a_path(tmp_path):
    (tmp_path / "plan.toml").write_text('version = 1\ndefault = "bf16"\n')
    model, _ = make()
    seen = []
    model[0].register_forward_hook(lambda *call: seen.append(call[-1].dtype))
    take_off = use_ampwise(accelerator_of("no"), model, plan=tmp_path / "plan.toml")
    model(torch.ones(2, 4))
    take_off()
    assert seen == [torch.bfloat16]


def test_a_plan_in_fp16_is_scaled():
    accelerator = accelerator_of()
    model, optimizer = make()
    take_off = use_ampwise(accelerator, model, plan=Plan(default="fp16", rules=(Rule(module="3", compute="fp32"),)))
    prepared = accelerator.prepare(model, optimizer)
    train(accelerator, *prepared, clip=1.0)
    take_off()
    assert accelerator.scaler.get_scale() == SCALE
    assert all(one.isfinite().all() for one in model.parameters())


def test_a_handler_that_wants_no_scale_gets_none():
    accelerator = accelerate.Accelerator(
        cpu=True, mixed_precision="fp16", kwargs_handlers=[GradScalerKwargs(enabled=False)]
    )
    use_ampwise(accelerator)
    assert accelerator.scaler is None


@pytest.mark.parametrize(
    ("precision", "options", "words"),
    [
        ("bf16", {"loss_scale": 128.0}, 'make it Accelerator\\(mixed_precision="fp16"\\)'),
        ("no", {"plan": "fp16"}, "left in the gradients"),
        ("fp16", {"loss_scale": "headrom"}, 'did you mean "headroom"'),
        ("no", {"plan": "fp16-saef"}, 'did you mean "fp16-safe"'),
    ],
)
def test_mistakes_are_told(precision, options, words):
    with pytest.raises(UsageError, match=words):
        use_ampwise(accelerator_of(precision), **options)


def test_too_late_is_told():
    accelerator = accelerator_of()
    model, _ = accelerator.prepare(*make())
    with pytest.raises(UsageError, match=r"came after accelerator.prepare"):
        use_ampwise(accelerator, model)


def test_the_watch_compares_accelerates_bf16_with_fp32():
    accelerator = accelerator_of("bf16")
    model, optimizer = accelerator.prepare(*make())
    with watch(model, optimizer, instruments=("against_fp32",)) as record:
        train(accelerator, model, optimizer, data=batches() * 2)
    compared = record.recording.runs[0].against_fp32
    assert (compared.note, compared.format) == (None, "bf16")
    assert [one.module for one in compared.modules] == ["0", "1", "2", "3", ""]
    assert all(0 < one.relative < 0.1 for one in compared.modules)
