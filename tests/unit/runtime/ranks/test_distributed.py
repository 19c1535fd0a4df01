"""What ranks that train together agree on, with gloo on the CPU: each case ran in all ranks of one start."""

import pickle
from collections import OrderedDict
from pathlib import Path

import pytest
import torch

from ampwise import (
    GradScaler,
    Plan,
    Rule,
    TrainStep,
    compress_gradients,
    fsdp_policy,
    joinable,
    load_checkpoint,
    load_sharded_checkpoint,
    save_sharded_checkpoint,
)
from ampwise._base.errors import RecordError, UsageError
from ampwise.runtime.ranks.distributed import find_agreement, peers_of
from ampwise.runtime.saving import sharded_checkpoint
from ranks import run_cases
from ranks_cases import CHECKPOINT, FOUR, TWO

CASES = Path(__file__).parents[3] / "helpers" / "ranks_cases.py"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return {CHECKPOINT: str(tmp_path_factory.mktemp("checkpoint") / "shards")}


@pytest.fixture(scope="module")
def two(tmp_path_factory, checkpoint):
    return run_cases(CASES, TWO, world=2, folder=tmp_path_factory.mktemp("two"), environ=checkpoint)


@pytest.fixture(scope="module")
def four(tmp_path_factory, two, checkpoint):
    """After ``two``, whose checkpoint it resumes."""
    return run_cases(CASES, FOUR, world=4, folder=tmp_path_factory.mktemp("four"), environ=checkpoint)


def near(value, **options):
    return pytest.approx(value, rel=2e-5, abs=2e-6, **options)


def check_agreement(ranks):
    first = ranks[0]
    assert all(one == first for one in ranks)
    assert first["bad"]
    for name, kept in first["kept"].items():
        assert kept["skipped"] == first["bad"], name
    assert first["kept"]["ddp"]["values"] == near(first["kept"]["fsdp"]["values"])
    assert first["kept"]["ddp clipped"]["values"] == near(first["kept"]["fsdp clipped"]["values"])


@pytest.mark.parametrize("world", ["two", "four"])
def test_ranks_never_disagree_about_a_skip(world, request):
    check_agreement(request.getfixturevalue(world)["agreeing"])


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_ranks_have_not_disagreed_after_500_steps(world, tmp_path):
    # two minutes of four ranks' CPU time, on a machine that may have others to serve
    found = run_cases(CASES, ["agreeing_long"], world=world, folder=tmp_path, timeout_s=1200)
    check_agreement(found["agreeing_long"])


# ------------------------------------------------------------------ who has gradients, and where


def test_a_rank_whose_expert_got_nothing_takes_part_and_its_overflow_skips_all(two):
    first, second = two["experts"]
    assert [one[0] for one in first["seen"]] == [one[0] for one in second["seen"]] == [False] * 4 + [True, False]
    assert [one[1] for one in first["seen"]] == [one[1] for one in second["seen"]]
    assert [one[2] for one in first["seen"]] == [True, True, False, True, False, True]
    assert [one[2] for one in second["seen"]] == [True, True, True, True, False, True]
    assert first["shared"] == second["shared"]
    assert first["scale"] == second["scale"] == 32.0


def test_no_gradient_on_any_rank_is_refused_by_all(two):
    assert all("no parameter of the optimizers has a gradient" in one for one in two["no_gradient_anywhere"])


def test_a_scaler_asks_the_ranks_it_is_told_of(two):
    first, second = two["one_rank_without_gradients"]
    assert first == [[False, [1.0, 1.0]], [True, [1.0, 1.0]], [False, [1.0, 1.0]]]
    assert second == [[False, [0.5, 0.5]], [True, [0.5, 0.5]], [False, [0.0, 0.0]]]


def test_shards_offloaded_to_the_cpu_are_agreed_on(two):
    for one in two["offloaded"]:
        assert one["skipped"] == [1, 3]
        assert one["values"] == one["plain"]


def test_an_overflow_under_no_sync_is_in_the_sum(two):
    for one in two["accumulating"]:
        assert all(run["skipped"] == [2, 4] for run in one["runs"].values())
        ddp, fsdp, every = one["values"]
        assert ddp == near(every)
        assert fsdp == near(every)
    assert two["accumulating"][0] == two["accumulating"][1]


def test_ranks_with_fewer_batches_end_with_the_state_of_those_that_came_last(two):
    first, second = two["uneven"]
    assert [first[name]["steps"] for name in first] == [3, 3]
    assert [second[name]["steps"] for name in second] == [5, 5]
    assert first["plain"]["momenta"] == second["plain"]["momenta"]
    for name in first:
        assert first[name]["values"] == second[name]["values"]
        assert first[name]["scale"] == second[name]["scale"] == 128.0


# ------------------------------------------------------------------ norms across shards


@pytest.mark.parametrize(
    ("world", "case"), [("two", "tensor_parallel"), ("four", "two_dimensions"), ("four", "replicated_shards")]
)
def test_the_norm_across_shards_is_that_of_one_device(world, case, request):
    ranks = request.getfixturevalue(world)[case]
    for one in ranks:
        ours, alone = one["norms"]
        assert [value is None for value in ours] == [False, False, True, False]
        assert [value or 0.0 for value in ours] == near([value or 0.0 for value in alone])
        assert one["values"][0] == near(one["values"][1])
    assert all(one["norms"][0] == ranks[0]["norms"][0] for one in ranks)


def test_one_reduction_carries_norm_and_finiteness_and_ddp_needs_none(two):
    counts = two["collectives"][0]
    assert counts["ddp"] == counts["torch ddp"] == {"collectives": 0, "bytes": 0}
    assert counts["fsdp"] == counts["fsdp clipped"] == {"collectives": 1, "bytes": 40}
    assert counts["torch fsdp"]["collectives"] == 2


# ------------------------------------------------------------------ scales


def test_scales_that_differ_are_refused_on_every_rank(two):
    for texts in two["unequal_scales"]:
        assert len(texts) == 3
        assert all("it lies between 16 and 32" in text and "before they are reduced" in text for text in texts)


def test_a_checkpoint_that_one_rank_loaded_is_noticed(two):
    assert all("it lies between 4 and 65536" in text for text in two["loaded_scales"])


def test_under_ddp_a_rank_that_loaded_alone_is_noticed_in_the_second_step_by_all(two):
    first, second = two["loaded_by_one"]
    assert [one[:2] for one in first] == [one[:2] for one in second]
    scale, parameters, optimizer, alike = first
    assert scale[0] is parameters[0] is optimizer[0] is None
    assert "the ranks did not begin alike: rank " in scale[1]
    assert "rank 0 has loss scale 4" in scale[1]
    assert "rank 1 has loss scale 65536" in scale[1]
    assert "parameters whose checksum is" in parameters[1]
    assert "rank 1 has 7 steps taken by the optimizers" in optimizer[1]
    assert "loss scale" not in optimizer[1]
    assert alike == [None, None, None]


def test_an_optimizer_cut_over_ranks_is_resumed(two):
    assert two["cut_optimizer"][0] == two["cut_optimizer"][1]
    assert two["cut_optimizer"][0][0] == [None] * 6


def test_a_named_losss_scale_is_every_ranks(two):
    first, second = two["named_losses"]
    assert first == second
    assert first["seen"][2] == [True, 64.0, 8.0, 1.0]
    assert first["seen"][3] == [False, 64.0, 8.0, 1.0]
    assert first["refused"].startswith("losses with names take a backward pass each")


def test_headroom_follows_the_largest_gradient_of_any_rank(two):
    first, second = two["headroom"]
    assert first == second
    assert first[4][0]
    assert first[0][1] > first[-1][1]


def test_a_measured_choice_is_the_first_ranks(two):
    assert two["chosen"] == ["bf16", "bf16"]


def test_ranks_given_other_options_do_not_wait_for_each_other(two):
    first, second = two["unlike_options"]
    assert second["precisions"] == ["fp32", "fp32"]
    assert first["precisions"][1] == "fp32"
    assert "on_preemption= was given on some ranks and not on others (here it was)" in first["told"]
    assert "on_preemption= was given on some ranks and not on others (here not)" in second["told"]


# ------------------------------------------------------------------ gradients in 16 bits


@pytest.mark.parametrize("world", ["two", "four"])
def test_gradients_in_16_bits_are_as_wrong_as_stated_and_half_as_long(world, request):
    ranks = request.getfixturevalue(world)["compression"]
    assert all(one == ranks[0] for one in ranks)
    for name, one in ranks[0]["found"].items():
        assert 0.05 < one["worst"] <= 1.0, name
        assert one["sent"] == pytest.approx(one["full"] / 2, rel=0.01)
        assert one["handed"] == (2002 if name.endswith("wire") else 2 * (2002 + (-1001 % len(ranks)) * 2))


def test_what_fits_once_averaged_does_not_overflow_and_an_infinity_stays_one(two):
    one = two["compression"][0]
    torchs, ours = one["large"]
    assert (torchs, ours) == (float("inf"), 49_984.0)
    assert one["infinite"] == [49_984.0, float("inf"), 49_984.0]


def test_compression_says_what_it_cannot_do():
    with pytest.raises(UsageError, match="give the DistributedDataParallel"):
        compress_gradients(torch.nn.Linear(1, 1))


# ------------------------------------------------------------------ FSDP2's policy, and checkpoints of shards


def test_a_plan_is_what_fsdp_casts(two):
    for one in two["policies"]:
        assert (one["inner"], one["output"], one["weight"]) == ("torch.bfloat16", "torch.float32", "torch.float32")
        assert one["losses"][-1] < one["losses"][0] / 2
    assert two["policies"][0]["norm"] == two["policies"][1]["norm"]


def test_a_policy_asks_the_rules_about_the_module():
    plan = Plan(default="fp16", rules=(Rule(module="head", compute="fp32", output="bf16"),))
    assert fsdp_policy(plan).param_dtype is torch.float16
    head = fsdp_policy(plan, module="head", reduce="bf16")
    assert (head.param_dtype, head.output_dtype, head.reduce_dtype) == (None, torch.bfloat16, torch.bfloat16)
    assert fsdp_policy("fp32").param_dtype is None


SOFTMAX = Rule(op="softmax", compute="fp32")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: fsdp_policy(Plan(default="bf16", rules=(SOFTMAX,))),
            "rules about operators",
        ),
        (lambda: fsdp_policy("bf16", reduce="fp8_e5m2"), 'FSDP2 sums in no "fp8_e5m2"'),
    ],
)
def test_a_policy_refuses_what_fsdp_does_not_cast(call, text):
    with pytest.raises(UsageError, match=text):
        call()


def test_shards_are_resumed_exactly_and_on_another_number_of_ranks(two, four):
    for one in two["saving"]:
        assert one["resumed"] == one["straight"]
        assert one["random"]
    straight = two["saving"][0]["straight"]
    for one in four["resuming"]:
        assert one["values"] == near(straight["values"])
        assert one["momenta"] == near(straight["momenta"])
        assert (one["scale"], one["lr"]) == (straight["scale"], straight["lr"])


def test_what_a_checkpoint_cannot_hold_is_refused(two):
    for first_form, shards in two["refused_checkpoints"]:
        assert "Use fully_shard(), or let every rank save_checkpoint() a file of its own" in first_form
        assert "let every rank call save_sharded_checkpoint()" in shards


def test_what_one_rank_cannot_write_or_read_all_refuse_and_what_was_there_stays(two):
    first, second = two["failing_shards"]
    assert first == second
    full, unreadable, unlucky, apart, damaged = first["refused"]
    begin = "cannot write the checkpoint: "
    assert full == begin + "rank 1: [Errno 28] No space left on device; what was there is as it was"
    assert unreadable == begin + "rank 1: [Errno 5] Input/output error; what was there is as it was"
    assert unlucky == begin + "RuntimeError: out of luck"
    assert apart.startswith(begin + "rank 0 does not see __0_7.distcp, which another rank wrote: give all ranks the s")
    assert "__1_0.distcp is damaged: its checksum is not that of its content. Nothing was loaded" in damaged
    assert first["left"] == ["shards-failing"]
    assert first["kept"] == {"kept": 1}


def test_the_first_form_of_fsdp_trains_as_ddp_does(two):
    assert two["first_form"][0] == two["first_form"][1]
    plain, joined, own = two["first_form"][0]
    assert plain["skipped"] == joined["skipped"] == own["skipped"]
    assert plain["scale"] == joined["scale"] == own["scale"]
    assert joined["values"] == near(plain["values"])
    assert own["values"] == near(plain["values"])


def _alone(width=3):
    model = torch.nn.Sequential(torch.nn.Linear(2, width))
    return TrainStep(torch.optim.Adam(model.parameters()), modules=[model], precision="fp32")


def _saved(folder):
    step = _alone()
    step(step.modules[0](torch.ones(1, 2)).sum())
    save_sharded_checkpoint(folder / "one", step=step, extra={"epoch": 3})
    return folder / "one"


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 1])
def test_what_four_ranks_saved_fewer_go_on_from(world, tmp_path):
    environ = {CHECKPOINT: str(tmp_path / "shards")}
    straight = run_cases(CASES, ["saving"], world=4, folder=tmp_path / "four", environ=environ)["saving"][0]["straight"]
    resumed = run_cases(CASES, ["resuming"], world=world, folder=tmp_path / "fewer", environ=environ)["resuming"]
    for one in resumed:
        assert one["values"] == near(straight["values"])
        assert one["momenta"] == near(straight["momenta"])
        assert (one["scale"], one["lr"]) == (straight["scale"], straight["lr"])


@pytest.mark.filterwarnings("ignore:.*torch.distributed is disabled.*")
def test_one_process_saves_and_loads_too(tmp_path):
    place = _saved(tmp_path)
    step = _alone()
    assert load_sharded_checkpoint(place, step=step) == {"epoch": 3}
    assert all(float(state["step"]) == 1.0 for state in step.optimizers[0].state.values())
    assert [one.name for one in tmp_path.iterdir()] == ["one"]
    with pytest.raises(RecordError, match=r"model.0.weight has shape \(5, 2\), in it \(3, 2\)"):
        load_sharded_checkpoint(place, step=_alone(width=5))
    with pytest.raises(RecordError, match="there is no sharded checkpoint"):
        load_sharded_checkpoint(tmp_path / "none", step=step)


@pytest.mark.filterwarnings("ignore:.*torch.distributed is disabled.*")
def test_a_folder_of_something_else_is_neither_replaced_nor_loaded(tmp_path):
    place, step = _saved(tmp_path), _alone()
    for taken in (tmp_path, place / "ampwise"):
        with pytest.raises(
            UsageError, match="is there and no sharded checkpoint, which is a folder of its own: give ano"
        ):
            save_sharded_checkpoint(taken, step=step)
    assert load_sharded_checkpoint(place, step=step) == {"epoch": 3}
    with pytest.raises(RecordError, match=r"is one file: what save_checkpoint\(\) wrote, load_checkpoint\(\) loads"):
        load_sharded_checkpoint(place / "ampwise", step=step)
    with pytest.raises(RecordError, match=r"is a folder, and save_checkpoint\(\) writes a file; the folders of save_"):
        load_checkpoint(place, step=step)
    (tmp_path / "empty").mkdir()
    save_sharded_checkpoint(tmp_path / "empty", step=step, extra={"epoch": 4})
    save_sharded_checkpoint(place, step=step, extra={"epoch": 5})
    assert [load_sharded_checkpoint(one, step=step)["epoch"] for one in (tmp_path / "empty", place)] == [4, 5]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["empty", "one"]


@pytest.mark.filterwarnings("ignore:.*torch.distributed is disabled.*")
def test_what_was_saved_bare_is_loaded_by_a_compiled_and_wrapped_model(tmp_path):
    place, step = _saved(tmp_path), _alone()
    for wrapper in ("module", "_orig_mod"):
        step.modules = (torch.nn.Sequential(OrderedDict({wrapper: step.modules[0]})),)
    assert load_sharded_checkpoint(place, step=step) == {"epoch": 3}
    assert all(float(state["step"]) == 1.0 for state in step.optimizers[0].state.values())


class Malicious:
    def __reduce__(self):
        return print, ("run",)


@pytest.mark.filterwarnings("ignore:.*torch.distributed is disabled.*")
def test_no_code_of_a_folder_is_run(tmp_path, capsys, monkeypatch):
    place = _saved(tmp_path)
    (place / ".metadata").write_bytes(pickle.dumps(Malicious()))
    with pytest.raises(RecordError, match=r"\.metadata is damaged"):
        load_sharded_checkpoint(place, step=_alone())
    monkeypatch.setattr(sharded_checkpoint, "fault_of_index", lambda *_: None)  # who writes it writes its checksum too
    with pytest.raises(RecordError, match=r"holds what no checkpoint is made of: builtins\.print"):
        load_sharded_checkpoint(place, step=_alone())
    assert capsys.readouterr().out == ""


@pytest.mark.filterwarnings("ignore:.*torch.distributed is disabled.*")
def test_a_crash_between_two_renames_leaves_the_old_one_to_be_found(tmp_path):
    place = _saved(tmp_path)
    place.rename(tmp_path / ".one.old")
    assert load_sharded_checkpoint(place, step=_alone()) == {"epoch": 3}


def test_the_page_about_several_processes_runs(two):
    first, second = two["documented"]
    assert first == second
    assert len(first) == 5
    assert [stepped for _, stepped in first.values()].count(True) == 3  # the others report, and send gradients


# ------------------------------------------------------------------ alone


def test_alone_nobody_is_asked():
    weight = torch.nn.Parameter(torch.ones(2))
    assert find_agreement([weight]) is None
    assert peers_of([torch.nn.Linear(1, 1)], None) is None
    scaler = GradScaler("cpu")
    scaler.scale(weight.sum())
    assert scaler.accord.peers() is None
    assert pickle.loads(pickle.dumps(scaler)).accord.peers() is None


def test_joinable_says_what_a_step_alone_lacks():
    weight = torch.nn.Parameter(torch.ones(2))
    with pytest.raises(UsageError, match="trains alone"):
        joinable(TrainStep(torch.optim.SGD([weight], lr=0.1), precision="fp32"))
