"""What several ranks do together, a case a function; each returns what its rank saw, as plain data."""

import contextlib
import hashlib
import os
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel

from ampwise import GradScaler, TrainStep
from ampwise._base.errors import CannotRunError, RecordError, UsageError
from ampwise.runtime.scaling.loss_scale import DynamicLossScale

INF = float("inf")


def rank():
    return dist.get_rank()


def net(seed=0, width=6):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, width), nn.Tanh(), nn.Linear(width, 3))


def ddp(model=None):
    return DistributedDataParallel(model or net())


def sharded(model=None, **options):
    model = model or net()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def batch(step, which):
    generator = torch.Generator().manual_seed(1000 * step + which)
    return torch.randn(4, 5, generator=generator)


def whole(tensor):
    return tensor.detach().full_tensor() if isinstance(tensor, DTensor) else tensor.detach()


def digest(model):
    values = b"".join(whole(one).clone().numpy().tobytes() for one in model.parameters())
    return hashlib.sha256(values).hexdigest()


def injections(num_steps, share, seed=3):
    """At which steps which rank's loss is infinite or NaN: the same on every rank."""
    dice = random.Random(seed)
    world = dist.get_world_size()
    return {
        step: (dice.randrange(world), dice.choice([INF, float("nan")]))
        for step in range(num_steps)
        if dice.random() < share
    }


def loss_of(model, step, bad, which=None):
    which = rank() if which is None else which
    loss = model(batch(step, which)).square().mean()
    at, value = bad.get(step, (None, None))
    return loss * value if at == rank() else loss


def _kept(model, skipped, scaler):
    places = [place for place, one in enumerate(skipped) if one]
    return {"digest": digest(model), "values": _values(model), "skipped": places, "scale": scaler.get_scale()}


def trained(model, *, num_steps, bad, num_micro=1, no_sync=None, **options):
    """Train with a TrainStep; what it did at each step, and what the parameters are in the end."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scale = DynamicLossScale(scale=256.0, growth_interval=20, min_scale=2.0**-40)
    step = TrainStep(
        optimizer, modules=[model], precision="fp32", loss_scale=scale, accumulation_steps=num_micro, **options
    )
    skipped = []
    for index in range(num_steps):
        for micro in range(num_micro):
            is_last = micro == num_micro - 1
            with no_sync(is_last) if no_sync else contextlib.nullcontext():
                with step.autocast():
                    loss = loss_of(model, index, bad if micro == 0 else {}, which=rank() + 10 * micro)
                result = step(loss)
        skipped.append(result.skipped)
    return _kept(model, skipped, step.scaler)


def looped(model, *, num_steps, bad, clip=False):
    """The same by a loop with a GradScaler."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scaler = GradScaler("cpu", init_scale=256.0, growth_interval=20)
    skipped = []
    for index in range(num_steps):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, index, bad)).backward()
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        skipped.append(scaler.last_step.skipped)
    return _kept(model, skipped, scaler)


def _agreeing(num_steps):
    bad = injections(num_steps, 0.1)
    kept = {
        "ddp": trained(ddp(), num_steps=num_steps, bad=bad),
        "ddp clipped": trained(ddp(), num_steps=num_steps, bad=bad, clip_grad_norm=0.5),
        "fsdp": trained(sharded(), num_steps=num_steps, bad=bad),
        "fsdp clipped": trained(sharded(), num_steps=num_steps, bad=bad, clip_grad_norm=0.5),
        "scaler ddp": looped(ddp(), num_steps=num_steps, bad=bad),
        "scaler fsdp": looped(sharded(), num_steps=num_steps, bad=bad, clip=True),
    }
    return {"bad": sorted(bad), "kept": kept}


def agreeing():
    return _agreeing(20)


def agreeing_long():
    return _agreeing(500)


# ------------------------------------------------------------------ who has gradients, and where


def _values(model):
    return [float(one) for param in model.parameters() for one in whole(param).flatten()[:6]]


class Experts(nn.Module):
    """A shared layer, and one expert a rank, which DistributedDataParallel leaves alone."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.shared = nn.Linear(5, 6)
        torch.manual_seed(100 + rank())
        self.expert = nn.Linear(6, 3)
        self._ddp_params_and_buffers_to_ignore = ["expert.weight", "expert.bias"]

    def forward(self, x, *, routed=True):
        hidden = self.shared(x).tanh()
        return self.expert(hidden) if routed else hidden


def experts():
    """Each rank's expert has gradients of its own, or none: a rank that got no token still takes part."""
    model = ddp(Experts())
    expert = torch.optim.SGD(model.module.expert.parameters(), lr=0.1)
    shared = torch.optim.SGD(model.module.shared.parameters(), lr=0.1)
    scale = DynamicLossScale(scale=64.0)
    step = TrainStep([shared, expert], modules=[model], precision="fp32", loss_scale=scale, clip_grad_norm=1.0)
    seen = []
    for index in range(6):
        routed = not (index in {2, 4} and rank() == 0)
        before = model.module.expert.weight.detach().clone()
        with step.autocast():
            loss = model(batch(index, rank()), routed=routed).square().mean()
            if index == 4 and rank() == 1:
                loss = loss * INF
        result = step(loss)
        moved = not torch.equal(before, model.module.expert.weight)
        seen.append([result.skipped, round(result.grad_norm, 6) if not result.skipped else None, moved])
    return {"seen": seen, "shared": _values(model.module.shared), "scale": step.scaler.get_scale()}


def no_gradient_anywhere():
    model = sharded()
    step = TrainStep(torch.optim.SGD(model.parameters(), lr=0.1), precision="fp32", clip_grad_norm=1.0)
    other = torch.ones(1, requires_grad=True)
    try:
        step(other.sum())
    except UsageError as error:
        return str(error)


def one_rank_without_gradients():
    """A hand-made group of ranks, of which one's loss does not reach its parameters."""
    weight = nn.Parameter(torch.ones(2))
    scaler = GradScaler("cpu", init_scale=8.0, process_group=dist.group.WORLD)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    other = torch.ones(1, requires_grad=True)
    seen = []
    for value in (1.0, INF, 1.0):
        optimizer.zero_grad()
        scaler.scale((weight * value).sum() if rank() == 1 else other.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        seen.append([scaler.last_step.skipped, weight.tolist()])
    return seen


def offloaded():
    bad = {1: (1, INF), 3: (0, INF)}
    model = sharded(offload_policy=CPUOffloadPolicy(pin_memory=False))
    kept = trained(model, num_steps=6, bad=bad, clip_grad_norm=0.5)
    return {**kept, "values": _values(model), "plain": _values_of(sharded(), bad)}


def _values_of(model, bad):
    trained(model, num_steps=6, bad=bad, clip_grad_norm=0.5)
    return _values(model)


def accumulating():
    """Under no_sync only the last loss of a window is reduced; an overflow in the first is in it."""
    bad = {2: (1, INF), 4: (0, float("nan"))}
    model = ddp()
    once = sharded()

    def ddp_sync(is_last):
        return contextlib.nullcontext() if is_last else model.no_sync()

    @contextlib.contextmanager
    def fsdp_sync(is_last):
        once.set_requires_gradient_sync(is_last)
        yield

    every = ddp()
    runs = {
        "ddp": trained(model, num_steps=6, bad=bad, num_micro=3, no_sync=ddp_sync, clip_grad_norm=0.5),
        "fsdp": trained(once, num_steps=6, bad=bad, num_micro=3, no_sync=fsdp_sync, clip_grad_norm=0.5),
        "every": trained(every, num_steps=6, bad=bad, num_micro=3, clip_grad_norm=0.5),
    }
    return {"runs": runs, "values": [_values(one) for one in (model, once, every)]}


def uneven():
    """Ranks with 3 and 6 batches; experts besides, which are agreed on."""
    from torch.distributed.algorithms.join import Join

    from ampwise import joinable

    found = {}
    for name, model in (("plain", ddp()), ("experts", ddp(Experts()))):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scale = DynamicLossScale(scale=64.0, growth_interval=2)
        step = TrainStep(optimizer, modules=[model], precision="fp32", loss_scale=scale, clip_grad_norm=0.5)
        count = 0
        with Join([model, joinable(step)]):
            for index in range(3 * (1 + rank())):
                with step.autocast():
                    loss = loss_of(model, index, {4: (1, INF)})
                count += step(loss).stepped
        shared = model.module[0] if name == "plain" else model.module.shared
        state = step.state_dict()["optimizers"][0]["state"]
        momenta = sum(float(state[place]["momentum_buffer"].sum()) for place in (0, 1))
        found[name] = {"steps": count, "scale": step.scaler.get_scale(), "values": _values(shared), "momenta": momenta}
    return found


# ------------------------------------------------------------------ tensor parallel, and meshes of two dimensions


def _tensor_parallel(mesh):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    return parallelize_module(net(width=8), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def _norms(model, reference, steps=4):
    """The norms a TrainStep clips by, beside those of the same model on one device."""
    pairs = []
    for one in (model, reference):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
        scale = DynamicLossScale(scale=256.0)
        step = TrainStep(optimizer, modules=[one], precision="fp32", loss_scale=scale, clip_grad_norm=0.05)
        found = []
        for index in range(steps):
            with step.autocast():
                loss = one(batch(index, 0)).square().mean()
                if index == 2 and rank() == dist.get_world_size() - 1:
                    loss = loss * INF
            if one is reference and index == 2:
                loss = loss * INF
            result = step(loss)
            found.append(None if result.skipped else result.grad_norm)
        pairs.append(found)
    return {"norms": pairs, "values": [_values(model), _values(reference)]}


def tensor_parallel():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    return _norms(_tensor_parallel(mesh), net(width=8))


def two_dimensions():
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("dp", "tp"))
    model = fully_shard(_tensor_parallel(mesh["tp"]), mesh=mesh["dp"])
    return _norms(model, net(width=8))


def replicated_shards():
    """HSDP: cut over two ranks, copied over the others; each part counts once in the norm."""
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
    return _norms(fully_shard(net(width=8), mesh=mesh), net(width=8))


# ------------------------------------------------------------------ scales


def _refused(call):
    try:
        call()
    except (CannotRunError, RecordError, UsageError) as error:
        return str(error)


def unequal_scales():
    found = []
    for model in (ddp(), sharded()):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        options = {"modules": [model], "precision": "fp32", "loss_scale": 2.0 ** (4 + rank())}
        found.append(_refused(lambda optimizer=optimizer, options=options: TrainStep(optimizer, **options)))
    model = sharded()
    scaler = GradScaler("cpu", init_scale=2.0 ** (4 + rank()))
    scaler.scale(loss_of(model, 0, {})).backward()
    found.append(_refused(lambda: scaler.step(torch.optim.SGD(model.parameters(), lr=0.1))))
    return found


def loaded_scales():
    """A checkpoint that only one rank loads."""
    model = sharded()
    step = TrainStep(
        torch.optim.SGD(model.parameters(), lr=0.1), modules=[model], precision="fp32", loss_scale=DynamicLossScale()
    )
    step(loss_of(model, 0, {}))
    state = step.state_dict()
    if rank() == 0:
        state["loss_scale"]["scale"] = 4.0
        step.load_state_dict(state)
    loss = loss_of(model, 1, {})
    return _refused(lambda: step(loss))


def loaded_by_one(num_steps=3):
    """Under DistributedDataParallel: what one rank alone loads, and where both load the same."""
    found = []
    for who, changed in ((0, "scale"), (1, "parameters"), (1, "optimizer"), (None, "all")):
        model = ddp()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        step = TrainStep(optimizer, modules=[model], precision="fp32", loss_scale=DynamicLossScale())
        if who in (None, rank()):
            _load(step, model, changed)
        steps = []
        for index in range(num_steps):
            loss = loss_of(model, index, {})
            steps.append(_refused(lambda step=step, loss=loss: step(loss)))
        found.append(steps)
    return found


def _load(step, model, changed):
    state = step.state_dict()
    if changed in {"scale", "all"}:
        state["loss_scale"]["scale"] = 4.0
    if changed in {"optimizer", "all"}:
        zeros = [torch.zeros_like(one) for one in model.parameters()]
        moments = {place: {"step": 7.0, "exp_avg": one, "exp_avg_sq": one} for place, one in enumerate(zeros)}
        state["optimizers"][0]["state"] = {
            place: {**one, "step": torch.tensor(one["step"])} for place, one in moments.items()
        }
    step.load_state_dict(state)
    if changed in {"parameters", "all"}:
        with torch.no_grad():
            model.module[0].weight += 1.0


def cut_optimizer():
    """Each rank has the state of its own parameters, and None for the others' once it was loaded."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    found, saved = [], None
    for _ in range(2):
        model = ddp()
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
        step = TrainStep(optimizer, modules=[model], precision="fp32", loss_scale=DynamicLossScale())
        if saved:
            step.load_state_dict(saved)
        for index in range(3):
            loss = loss_of(model, index, {})
            found.append(_refused(lambda step=step, loss=loss: step(loss)))
        optimizer.consolidate_state_dict(to=0)
        box = [step.state_dict() if rank() == 0 else None]
        dist.broadcast_object_list(box)
        saved = box[0]
    return [found, digest(model)]


def named_losses():
    """An infinity in one rank's loss backs off that loss's scale on every rank, and no other's."""
    model = sharded()
    scales = {"left": DynamicLossScale(scale=64.0), "right": DynamicLossScale(scale=16.0)}
    step = TrainStep(torch.optim.SGD(model.parameters(), lr=0.1), modules=[model], precision="fp32", loss_scale=scales)
    seen = []
    for index in range(4):
        with step.autocast():
            out = model(batch(index, rank()))
            right = out[:, 1:].square().mean() * (INF if index == 2 and rank() == 0 else 1.0)
            losses = {"left": out[:, 0].square().mean(), "right": right}
        result = step(losses)
        seen.append(
            [result.skipped, step.scaler.get_scale("left"), step.scaler.get_scale("right"), step.scaler.get_scale()]
        )
    return {"seen": seen, "digest": digest(model), "refused": _named_under_ddp(scales)}


def _named_under_ddp(scales):
    model = ddp()
    step = TrainStep(torch.optim.SGD(model.parameters(), lr=0.1), modules=[model], precision="fp32", loss_scale=scales)
    out = model(batch(0, 0))
    return _refused(lambda: step({"left": out[:, 0].sum(), "right": out[:, 1].sum()}))


def headroom():
    """The largest gradient lies in one rank's shard; the scale follows it on all."""
    model = sharded()
    step = TrainStep(
        torch.optim.SGD(model.parameters(), lr=0.1), modules=[model], precision="fp32", loss_scale="headroom"
    )
    scales = []
    for index in range(8):
        with step.autocast():
            loss = loss_of(model, index, {4: (1, INF)})
        scales.append([step(loss).skipped, step.scaler.get_scale()])
    return scales


def chosen():
    """Each rank measures something else; the first one's choice holds."""
    from ampwise.runtime.step import regime as module

    own, other = module.choose_precision, ("bf16", "fp32")[rank() % 2]
    module.choose_precision = lambda _, device: own(other, device=device)
    try:
        model = ddp()
        return TrainStep(torch.optim.SGD(model.parameters(), lr=0.1), modules=[model]).precision
    finally:
        module.choose_precision = own


def unlike_options():
    """What only one rank is given: a precision of its own, a plan, word of SIGTERM."""

    def made(**options):
        model = ddp()
        return TrainStep(torch.optim.SGD(model.parameters(), lr=0.1), modules=[model], **options)

    precisions = [made(precision="auto" if rank() == 0 else "fp32").precision]
    precisions.append(made(**({"plan": "p=fp32,c=fp32,o=fp32"} if rank() == 0 else {"precision": "fp32"})).precision)
    told = _refused(lambda: made(precision="fp32", on_preemption=print if rank() == 0 else None))
    return {"precisions": precisions, "told": told}


# ------------------------------------------------------------------ what it costs


def collectives():
    """Collectives of one update phase: ours, and those of torch's own sequence."""
    counts = {}
    for name, model, clip in (("ddp", ddp(), 0.5), ("fsdp", sharded(), None), ("fsdp clipped", sharded(), 0.5)):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        options = {"modules": [model], "precision": "fp32", "clip_grad_norm": clip}
        step = TrainStep(optimizer, loss_scale=DynamicLossScale(scale=16.0), **options)
        for _ in range(2):
            loss = loss_of(model, 0, {})
            with step._regime.backward():
                step.scaler.scale(loss).backward()
            with Traffic() as traffic:
                step._step((loss,), correction=1.0)
        counts[name] = traffic.plain()
    for name, model in (("torch ddp", ddp()), ("torch fsdp", sharded())):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
        for _ in range(2):
            scaler.scale(loss_of(model, 0, {})).backward()
            with Traffic() as traffic:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                scaler.step(optimizer)
                scaler.update()
            optimizer.zero_grad()
        counts[name] = traffic.plain()
    return counts


class Traffic:
    """Counts collectives and the bytes handed to them, torch's functional ones and those of ``torch.distributed``."""

    _NAMES = ("all_reduce", "all_gather_single", "reduce_scatter_tensor", "broadcast", "all_to_all_single")

    def __enter__(self):
        self._mode, self.count, self.bytes = CommDebugMode(), 0, 0
        self._own = {name: getattr(dist, name) for name in self._NAMES}
        for name, function in self._own.items():
            setattr(dist, name, self._counting(function))
        self._mode.__enter__()
        return self

    def __exit__(self, *exc):
        self._mode.__exit__(*exc)
        for name, function in self._own.items():
            setattr(dist, name, function)

    def _counting(self, function):
        def call(tensor, *args, **kwargs):
            self.count += 1
            self.bytes += tensor.nbytes
            return function(tensor, *args, **kwargs)

        return call

    def plain(self):
        functional = {
            str(name): count for name, count in self._mode.get_comm_counts().items() if "functional" in str(name)
        }
        return {"collectives": self.count + sum(functional.values()), "bytes": self.bytes}


# ------------------------------------------------------------------ gradients in 16 bits


def _averaged(gradients, hook):
    """The gradient that every rank gets of these, a rank each, and what was sent."""
    layer = nn.Linear(gradients.shape[1], 1, bias=False)
    nn.init.zeros_(layer.weight)
    model = ddp(layer)
    made = hook(model)
    with Traffic() as traffic:
        model(gradients[rank()].unsqueeze(0)).sum().backward()
    return layer.weight.grad.flatten().double(), made, traffic


def compression():
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    from ampwise import compress_gradients

    world = dist.get_world_size()
    generator = torch.Generator().manual_seed(0)
    exponents = torch.randint(-12, 12, (world, 1001), generator=generator)
    gradients = torch.randn(world, 1001, generator=generator) * torch.exp2(exponents.float())
    true, size = gradients.double().mean(dim=0), gradients.double().abs().mean(dim=0)
    found = {}
    for name in ("bf16", "fp16"):
        for how in ("fp32", "wire"):
            mean, made, traffic = _averaged(
                gradients, lambda model, n=name, h=how: compress_gradients(model, n, sum_in=h)
            )
            share = (mean - true).abs() / (made.relative_error * size + made.absolute_error)
            found[f"{name} {how}"] = {
                "worst": float(share.max()),
                "digest": hashlib.sha256(mean.numpy().tobytes()).hexdigest(),
                "sent": made.sent_bytes,
                "full": made.full_bytes,
                "handed": traffic.bytes,
            }
    large = torch.zeros(world, 8)
    large[0] = 1e5  # no number of fp16, but their average is one
    torchs, _, _ = _averaged(large, lambda model: model.register_comm_hook(None, fp16_compress_hook))
    ours, _, _ = _averaged(large, lambda model: compress_gradients(model, "fp16"))
    infinite = large.clone()
    infinite[0, 3] = INF
    seen, _, _ = _averaged(infinite, lambda model: compress_gradients(model, "fp16"))
    return {"found": found, "large": [float(torchs[0]), float(ours[0])], "infinite": [float(one) for one in seen[2:5]]}


# ------------------------------------------------------------------ FSDP2's policy, and checkpoints of shards


def policies():
    """Computed in bf16, summed in fp32, given out in fp32; parameters and optimizer stay in fp32."""
    from ampwise import fsdp_policy

    seen = {}
    model = net()
    model[1].register_forward_hook(lambda _module, _args, output: seen.update(inner=str(output.dtype)))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for name, layer in model.named_children():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, mp_policy=fsdp_policy("p=fp32,c=bf16,o=fp32", module=name))
    fully_shard(model, mesh=mesh, mp_policy=fsdp_policy("p=fp32,c=bf16,o=fp32"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    step = TrainStep(optimizer, modules=[model], precision="fp32", clip_grad_norm=1.0)
    losses = []
    for _ in range(12):
        with step.autocast():
            out = model(batch(0, rank()))
            loss = out.square().mean()
        result = step(loss)
        losses.append(float(loss))
    weight = next(model.parameters())
    return {**seen, "output": str(out.dtype), "weight": str(weight.dtype), "norm": result.grad_norm, "losses": losses}


CHECKPOINT = "AMPWISE_TEST_CHECKPOINT"


def _resumable(extra_steps, folder, *, load):
    from ampwise import load_sharded_checkpoint, save_sharded_checkpoint

    model = sharded(net(width=8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    options = {"schedulers": [torch.optim.lr_scheduler.StepLR(optimizer, 3)], "clip_grad_norm": 0.1}
    scale = DynamicLossScale(scale=64.0, growth_interval=4)
    step = TrainStep(optimizer, modules=[model], precision="fp32", loss_scale=scale, **options)
    start = load_sharded_checkpoint(folder, step=step)["step"] if load else 0
    for index in range(start, start + extra_steps):
        with step.autocast():
            loss = model(batch(index, 0)).square().mean()  # the same on all ranks: their number does not matter
        step(loss)
    if not load:
        save_sharded_checkpoint(folder, step=step, extra={"step": start + extra_steps})
    momenta = sum(float(whole(state["exp_avg"]).double().sum()) for state in optimizer.state.values())
    rate = optimizer.param_groups[0]["lr"]
    return {"values": _values(model), "momenta": momenta, "scale": step.scaler.get_scale(), "lr": rate}


def saving():
    """Six steps, saved after four, and the same six at a stretch."""
    folder = os.environ[CHECKPOINT]
    _resumable(4, folder, load=False)
    random_state = torch.get_rng_state()
    torch.manual_seed(9)
    resumed = _resumable(2, folder, load=True)
    same = torch.equal(random_state, torch.get_rng_state())
    return {"resumed": resumed, "straight": _resumable(6, folder + "-straight", load=False), "random": same}


def failing_shards():
    """A disk that is full for one rank; then a file that is damaged, which but one rank reads."""
    from pathlib import Path

    from torch.distributed.checkpoint import FileSystemWriter

    from ampwise import load_sharded_checkpoint, save_sharded_checkpoint

    folder = Path(os.environ[CHECKPOINT] + "-failing")
    model = sharded()
    step = TrainStep(torch.optim.Adam(model.parameters()), modules=[model], precision="fp32")
    step(loss_of(model, 0, {}))
    save_sharded_checkpoint(folder, step=step, extra={"kept": 1})
    write = FileSystemWriter.write_data

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    FileSystemWriter.write_data = full if rank() == 1 else write
    try:
        refused = [_refused(lambda: save_sharded_checkpoint(folder, step=step))]
    finally:
        FileSystemWriter.write_data = write
    refused += _failing_later(folder, step)
    dist.barrier()
    left = sorted(one.name for one in folder.parent.glob(f"*{folder.name}*"))
    kept = load_sharded_checkpoint(folder, step=step)
    dist.barrier()
    shards = folder / "__1_0.distcp"
    if rank() == 0:
        content = bytearray(shards.read_bytes())
        content[len(content) // 2] ^= 1
        shards.write_bytes(content)
    dist.barrier()
    refused.append(_refused(lambda: load_sharded_checkpoint(folder, step=step)))
    return {"refused": refused, "left": left, "kept": kept}


def _failing_later(folder, step):
    """What is written cannot be read again, on one rank; the first rank fails in its own part; ranks see two disks."""
    from ampwise import save_sharded_checkpoint
    from ampwise.runtime.saving import shard_files, sharded_checkpoint

    def failing(error, *, on):
        def call(*_):
            if rank() == on:
                raise error
            return {}

        return call

    faults = [
        (shard_files, "_digests_of_own", failing(OSError(5, "Input/output error"), on=1)),
        (sharded_checkpoint, "write_document", failing(RuntimeError("out of luck"), on=0)),
        (shard_files, "_digests_of_own", lambda _: {f"__{rank()}_7.distcp": ""}),
    ]
    refused = []
    for module, name, stand_in in faults:
        own = getattr(module, name)
        setattr(module, name, stand_in)
        try:
            refused.append(_refused(lambda: save_sharded_checkpoint(folder, step=step)))
        finally:
            setattr(module, name, own)
    return refused


def refused_checkpoints():
    """FSDP's first form as shards, and shards as one rank's file."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    from ampwise import save_checkpoint, save_sharded_checkpoint

    folder = os.environ[CHECKPOINT]
    found = []
    for model, save in (
        (FullyShardedDataParallel(net(), device_id=torch.device("cpu")), save_sharded_checkpoint),
        (sharded(), save_checkpoint),
    ):
        step = TrainStep(torch.optim.Adam(model.parameters()), modules=[model], precision="fp32")
        step(loss_of(model, 0, {}))
        place = f"{folder}-refused-{rank()}"
        found.append(_refused(lambda save=save, step=step, place=place: save(place, step=step)))
    return found


def first_form():
    """FSDP's first form, its parameters joined or its own; clipped, with infinities on single ranks."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    found = [trained(ddp(), num_steps=8, bad=injections(8, 0.3), clip_grad_norm=0.5)]
    for own in (False, True):
        model = FullyShardedDataParallel(net(), device_id=torch.device("cpu"), use_orig_params=own)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scale = DynamicLossScale(scale=256.0, growth_interval=20, min_scale=2.0**-40)
        options = {"modules": [model], "precision": "fp32", "loss_scale": scale, "clip_grad_norm": 0.5}
        step = TrainStep(optimizer, **options)
        skipped = [step(loss_of(model, index, injections(8, 0.3))).skipped for index in range(8)]
        with FullyShardedDataParallel.summon_full_params(model):
            found.append(_kept(model, skipped, step.scaler))
    return found


class Layered(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x):
        return self.layers(x)


def documented():
    """The page about several processes, each of its sections by itself; its first block starts what has started."""
    from pathlib import Path

    from documentation import ROOT, blocks, sections, stand_ins

    page = ROOT / "docs/distributed.md"
    top = blocks(page.read_text(), "python")[0].replace('torch.distributed.init_process_group("gloo")', "")
    before, found = Path.cwd(), {}
    os.chdir(Path(os.environ[CHECKPOINT]).parent)
    try:
        for heading, text in sections(page):
            names = {**stand_ins(), "model": Layered()}
            names["optimizer"] = torch.optim.AdamW(names["model"].parameters(), lr=1e-2)
            names["loader"] = names["loader"][: 2 + rank()] if "numbers of batches" in heading else names["loader"][:2]
            for code in (top, *(blocks(text, "python"))):
                with contextlib.redirect_stdout(None):
                    exec(compile(code, str(page), "exec"), names)
            found[heading] = [digest(names["model"]), "result" in names and names["result"].stepped]
    finally:
        os.chdir(before)
    return found


def resuming():
    return _resumable(2, os.environ[CHECKPOINT], load=True)


TWO = (
    "agreeing",
    "experts",
    "no_gradient_anywhere",
    "one_rank_without_gradients",
    "offloaded",
    "accumulating",
    "tensor_parallel",
    "unequal_scales",
    "loaded_scales",
    "loaded_by_one",
    "cut_optimizer",
    "named_losses",
    "headroom",
    "chosen",
    "unlike_options",
    "collectives",
    "uneven",
    "compression",
    "policies",
    "saving",
    "refused_checkpoints",
    "failing_shards",
    "documented",
    "first_form",
)
FOUR = ("agreeing", "resuming", "compression", "two_dimensions", "replicated_shards")
