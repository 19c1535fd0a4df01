"""The operators that ampwise knows by name are the installed torch's."""

import pytest
import torch

from ampwise.plan.names import kinds, listed, operators_meant, spellings

PACKETS = {name.split("::")[1].partition(".")[0] for name in torch._C._dispatch_get_all_op_names() if "aten::" in name}
LAYERS = """
Linear Conv1d Conv2d ConvTranspose2d LayerNorm GroupNorm BatchNorm2d InstanceNorm1d RMSNorm Softmax LogSoftmax GELU SiLU
ReLU Sigmoid Tanh Softplus Dropout Embedding MaxPool2d AvgPool2d AdaptiveAvgPool2d CrossEntropyLoss MSELoss L1Loss
SmoothL1Loss HuberLoss KLDivLoss BCELoss BCEWithLogitsLoss NLLLoss CTCLoss LSTM GRU MultiheadAttention Upsample PReLU
LogSigmoid Hardswish Mish
"""


def test_every_name_is_an_operator_of_torch():
    named = {
        *spellings()["unlisted"],
        *spellings()["operators"],
        *(name for names in kinds().values() for name in names),
    }
    assert named - PACKETS == set()


def test_what_is_called_unlisted_is_in_no_list():
    assert set(spellings()["unlisted"]) & set(listed()) == set()


def test_every_spelling_leads_to_one_operator_or_is_a_kind_of_layer():
    several = {
        word for word in (w for row in spellings()["operators"].values() for w in row) if len(operators_meant(word)) > 1
    }
    assert several <= {"conv", "lstm", "interpolate", "upsample", "attention"}


@pytest.mark.parametrize("namespace", ["linalg", "special", "fft"])
def test_a_function_of_a_namespace_is_known_by_its_dotted_name(namespace):
    module, prefix = getattr(torch, namespace), f"{namespace}_"
    names = {name for name in (*listed(), *spellings()["unlisted"]) if name.startswith(prefix)}
    shared = [name for name in names if hasattr(module, name.removeprefix(prefix))]
    assert shared
    for name in shared:
        assert name in operators_meant(f"torch.{namespace}.{name.removeprefix(prefix)}")


@pytest.mark.parametrize("layer", LAYERS.split())
def test_layers_are_known_by_their_class(layer):
    assert hasattr(torch.nn, layer)
    assert operators_meant(f"nn.{layer}")


@pytest.mark.parametrize(
    ("one", "other"),
    [("@", "torch.matmul"), ("+", "torch.add"), ("/", "true_divide"), ("**", "torch.pow"), ("clip", "Tensor.clamp")],
)
def test_signs_are_spellings(one, other):
    names = operators_meant(other)
    assert operators_meant(one) == names
    assert len(names) == 1
