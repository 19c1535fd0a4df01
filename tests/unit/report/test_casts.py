import dataclasses
import io
import json

import pytest
from rich.console import Console

from ampwise.records.casts import CastOrigin, CastPlace, CastRecord, OperatorCalls, Promotion, RepeatedCast
from ampwise.records.run import RunEnd, RunRecord
from ampwise.records.site import Phase, Site
from ampwise.report.casts import casts_json, render_casts

LONG = "encoder.layers.11.self_attention.projections.out_projection"


def call(module, op, dtype, count, ms, *, phase=Phase.FORWARD):
    return OperatorCalls(site=Site(phase=phase, module=module, op=op), dtype=dtype, result=dtype, count=count, ms=ms)


def cast(module, reason, **changes):
    made = CastPlace(
        site=Site(phase=Phase.FORWARD, module=module, op="aten._to_copy", file="train.py", line=7),
        origin=CastOrigin.AUTOCAST,
        source="fp32",
        target="bf16",
        reason=reason,
        count=4,
        bytes=8192,
        ms=2.0,
    )
    return dataclasses.replace(made, **changes)


CASTS = CastRecord(
    steps=(1, 2),
    calls=(
        call("head", "aten.addmm", "bf16", 2, 5.0),
        call(LONG, "aten._scaled_dot_product_flash_attention_for_cpu", "bf16", 2, 4.0),
        call("", "aten.add", "bf16+fp32", 2, 1.0),
        call(None, "aten.nll_loss", "fp32", 2, 1.0, phase=Phase.OTHER),
        call(None, "aten.addcdiv_", "fp32", 40, 1.0, phase=Phase.OPTIMIZER),
        call(None, "aten.mul_", "fp32", 60, 1.0, phase=Phase.OPTIMIZER),
    ),
    casts=(cast("head", "aten.addmm"), cast("head", "aten.bmm", expanded_bytes=4 * 2**20), cast("", None)),
    repeated=(RepeatedCast(parameter="head.weight", target="bf16", num_per_step=3.0, bytes=4096),),
    promotions=(
        Promotion(
            site=Site(phase=Phase.OTHER, op="aten.where", file="train.py", line=9),
            dtypes=("fp16", "fp32"),
            result="fp32",
            count=2,
        ),
    ),
    num_operators=100,
    operator_bytes=100_000,
    operator_ms=20.0,
    cost_ms=1.0,
)
RUN = RunRecord(variant="auto", precision="bf16", reason="probe", repeat=0, end=RunEnd.STOPPED, casts=CASTS)


def rendered(run, *, width=80):
    file = io.StringIO()
    render_casts(run, Console(file=file, width=width, color_system=None))
    return file.getvalue()


def test_the_first_line_says_what_casts_came_to():
    text = " ".join(rendered(RUN).split())
    assert text.startswith("bf16: 6 casts a step, 25% of the bytes that operators moved and 30% of its time (2 steps")


def test_the_table_fits_80_columns_with_every_figure_whole():
    lines = rendered(RUN).splitlines()
    assert max(map(len, lines)) <= 80
    head = next(line for line in lines if line.strip().startswith("head") and "addmm" in line)
    assert head.split() == ["head", "addmm", "bf16", "1", "25%", "2", "4.00", "KiB"]
    assert any("…" in line and "bf16" in line and "20%" in line for line in lines)


def test_the_optimizers_operators_are_one_row():
    rows = [line.split() for line in rendered(RUN).splitlines() if "(optimizer)" in line]
    assert rows == [["(optimizer)", "all", "operators", "fp32", "50", "10%"]]


def test_what_is_worth_a_change_stands_below_with_its_line():
    text = " ".join(rendered(RUN).split())
    assert "expanded: head (train.py:7) casts an expanded tensor, which then takes 1.00 MiB more; cast it" in text
    assert "repeated: head.weight is cast to bf16 3 times a step" in text
    assert "promoted: where of fp16 and fp32 gives fp32, 1 a step, in (outside) (train.py:9)" in text


def test_a_scripts_own_precision_is_named_as_its_own():
    run = dataclasses.replace(RUN, left_alone="torch.autocast entered at train.py:4")
    assert rendered(run).startswith("the script's own (torch.autocast entered at train.py:4): 6 casts a step")


def test_long_tables_say_what_is_left_out():
    calls = tuple(call(f"layers.{index}", "aten.addmm", "bf16", 2, 1.0) for index in range(40))
    run = dataclasses.replace(RUN, casts=dataclasses.replace(CASTS, calls=calls, casts=()))
    assert "15 more rows; --json has them all" in rendered(run)


@pytest.mark.parametrize("casts", [None, dataclasses.replace(CASTS, steps=())])
def test_without_a_step_there_is_no_table(casts):
    assert rendered(dataclasses.replace(RUN, casts=casts)).startswith("no step was watched to its end")


def test_on_a_device_of_its_own_there_is_no_time():
    calls = tuple(dataclasses.replace(one, ms=None) for one in CASTS.calls)
    casts = dataclasses.replace(CASTS, calls=calls, operator_ms=None)
    text = rendered(dataclasses.replace(RUN, casts=casts))
    assert "of its time" not in text
    assert "25%" not in text.split("\n", 2)[2]


def test_names_from_the_script_are_inert():
    casts = dataclasses.replace(CASTS, calls=(call("\x1b[31mred[bold]", "aten.mm", "bf16", 2, 1.0),), casts=())
    text = rendered(dataclasses.replace(RUN, casts=casts))
    assert "\x1b" not in text
    assert "[bold]" in text


def test_json_holds_all_with_the_shares():
    document = json.loads(json.dumps(casts_json(RUN), allow_nan=False))
    assert document["precision"] == "bf16"
    assert document["num_casts"] == 12
    assert document["byte_share"] == pytest.approx(0.24576)
    assert document["casts"]["casts"][0]["origin"] == "autocast"
    assert document["casts"]["promotions"][0]["site"]["line"] == 9
