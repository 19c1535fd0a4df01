"""Ranks that did not begin alike are told in their second step: here all in one process, around one store."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ampwise._base.errors import CannotRunError
from ampwise.compat.rank_words import RankWords
from ampwise.runtime.ranks.likeness import Likeness, likeness_of
from imagining import imagining


class Kept(torch.optim.Optimizer):
    """Keeps what it is told to, of each parameter or beside them."""

    def __init__(self, params, *, kept=None, beside=None, **settings):
        super().__init__(params, settings)
        for param in self.param_groups[0]["params"]:
            if kept is not ...:
                self.state[param] = kept
        if beside is not None:
            self.state["beside"] = beside


def weight(value=1.0, dtype=torch.float32, device="cpu"):
    return nn.Parameter(torch.full((3,), value, dtype=dtype, device=device))


def likeness(store, rank, params, optimizers=(), scale=1.0):
    return Likeness(RankWords(rank=rank, store=store), params, optimizers, lambda: scale)


def told(*ranks):
    """What each rank is told in its second step; ``ranks`` give the arguments of each."""
    store = dist.HashStore()
    made = [likeness(store, rank, **given) for rank, given in enumerate(ranks)]
    for one in made:
        one.check()
    return [refusal(one) for one in made]


def refusal(one):
    try:
        one.check()
    except CannotRunError as error:
        return str(error)
    one.check()
    return None


def keeping(kept, *, lr=0.1, **options):
    param = weight()
    return {"params": [param], "optimizers": [Kept([param], kept=kept, lr=lr, **options)]}


def test_ranks_that_are_alike_are_told_nothing():
    assert told(*[{"params": [weight()], "scale": 4.0}] * 3) == [None, None, None]
    adam = [{"params": (params := [weight()]), "optimizers": [torch.optim.Adam(params)]} for _ in range(2)]
    assert told(*adam) == [None, None]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.float8_e4m3fn])
def test_all_ranks_are_told_the_same_though_one_alone_differs(dtype):
    ranks = [weight(1.0 if rank != 2 else 2.0, dtype) for rank in range(4)]
    texts = told(*({"params": [one]} for one in ranks))
    assert len(set(texts)) == 1
    assert texts[0].startswith("the ranks did not begin alike: rank 0 has parameters whose checksum is ")
    assert "; rank 2 has parameters whose checksum is " in texts[0]
    first, second = (part.rpartition(" ")[2] for part in texts[0].partition(". Load")[0].split("; "))
    assert first != second


def test_a_large_checksum_is_told_to_its_last_digit():
    ranks = [nn.Parameter(torch.full((9000,), 1.0)) for _ in range(2)]
    with torch.no_grad():
        ranks[1][0] += 2**-23
    (text, _) = told(*({"params": [one]} for one in ranks))
    assert "checksum is 9588178944000; rank 1 has parameters whose checksum is 9588178944001." in text


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([{"params": (), "scale": 4.0}, {"params": (), "scale": 8.0}], "rank 0 has loss scale 4; rank 1 has loss sc"),
        ([keeping({"step": 0.0}), keeping({"step": torch.tensor(7.0)})], "rank 1 has 7 steps taken by the optimizers"),
        ([keeping(..., lr=0.1), keeping(..., lr=torch.tensor(0.5))], "rank 0 has learning rates 0.1; rank 1 has l"),
        (
            [keeping(..., lr=None), keeping(..., lr=0.5)],
            "learning rates None; rank 1 has learning rates 0.5",
        ),
    ],
)
def test_what_differs_is_told_of_both(ranks, text):
    first, second = told(*ranks)
    assert first == second
    assert text in first
    assert "parameters whose" not in first


@pytest.mark.parametrize(
    "ranks",
    [
        [keeping(..., lr=None)] * 2,  # it finds its own rate
        [keeping({"n_iter": 3})] * 2,
        [keeping({"step": None})] * 2,
        [keeping({"step": torch.ones(3)})] * 2,
        [keeping(7)] * 2,
        [keeping({"step": 4.0}, beside={"step": "no number"})] * 2,
        [keeping(None), keeping({"step": 5.0})],  # each has the state of its own parameters
        [keeping({"step": 5.0}), keeping(None)],
    ],
)
def test_whatever_optimizers_keep_is_taken(ranks):
    assert told(*ranks) == [None, None]


def test_the_words_of_the_others_are_read_when_the_device_has_summed_the_gradients(monkeypatch):
    """A host may be ahead of its device: what is in the store before that says nothing."""
    store, waited = dist.HashStore(), []
    with imagining(is_watched=False):
        one = likeness(store, 0, [weight(device="cuda"), weight(device="cuda")])
        one.check()

        def synchronize(device):
            waited.append(device.type)
            if len(waited) == 1:
                likeness(store, 1, [weight(device="cuda")], scale=8.0).check()  # the other rank comes to it only now

        monkeypatch.setattr(torch.accelerator, "synchronize", synchronize)
        text = refusal(one)
    assert "rank 0 has loss scale 1; rank 1 has loss scale 8" in text
    assert waited == ["cuda"]


def test_who_trains_alone_compares_nothing():
    param = weight()
    check = likeness_of([nn.Linear(1, 1)], [torch.optim.SGD([param], lr=0.1)], lambda: 1.0)
    for _ in range(3):
        assert check() is None
