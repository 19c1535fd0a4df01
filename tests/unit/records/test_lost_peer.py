"""Which errors only say that another process of the training is gone."""

import pytest

from ampwise.records.lost_peer import has_lost_peer


@pytest.mark.parametrize(
    "message",
    [
        "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:2216. This is typically caused by",
        "[gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:6046: Connection reset by peer.",
        "[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 60000ms for recv operation to complete",
        "NCCL error: remote process exited or there was a network error",
        "NCCL communicator was aborted on rank 1.",
    ],
)
def test_gloo_and_nccl_say_so(message):
    assert has_lost_peer(message)


@pytest.mark.parametrize("message", ["mat1 and mat2 shapes cannot be multiplied", "HTTPSConnection: Read timed out."])
def test_faults_of_ones_own_do_not(message):
    assert not has_lost_peer(message)
