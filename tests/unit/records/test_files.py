import dataclasses
import json
import math
import os
import subprocess
import sys
import typing

import pytest

from ampwise import __version__
from ampwise._base.errors import RecordError, UsageError
from ampwise.records.files import from_json, load, load_recording, save, save_recording, to_json
from ampwise.records.recording import VERSION, Recording
from ampwise.records.run import RunEnd, RunRecord, StepRecord


def _run(**changes) -> RunRecord:
    steps = (StepRecord(index=0, optimizer=0, loss=math.nan, time_ms=None),)
    run = RunRecord(variant="auto", precision="bf16", reason="probe", repeat=0, end=RunEnd.STOPPED, steps=steps)
    return dataclasses.replace(run, **changes)


def _document(**changes) -> str:
    return json.dumps({**json.loads(to_json(_run())), **changes})


def test_a_saved_record_is_loaded(tmp_path):
    path = tmp_path / "run.json"
    save(_run(), path)
    assert repr(load(path, RunRecord)) == repr(_run())


def test_non_finite_floats_are_tagged():
    steps = tuple(
        StepRecord(index=i, optimizer=0, loss=loss, time_ms=1.0)
        for i, loss in enumerate((math.nan, math.inf, -math.inf))
    )
    text = to_json(_run(steps=steps))
    assert [step["loss"] for step in json.loads(text)["steps"]] == [
        {"float": "nan"},
        {"float": "inf"},
        {"float": "-inf"},
    ]


def test_a_file_name_that_is_not_utf8_is_spelt_out():
    text = to_json(_run(notes=("caf\udce9.py",)))
    assert from_json(text, RunRecord).notes == ("caf\\udce9.py",)


def test_all_wrong_fields_are_listed_with_their_paths():
    document = json.loads(to_json(_run()))
    document["steps"][0].update(loss="low", skipped=1, typo=3)
    document.update(end="stoped", repeat=True)
    del document["variant"]
    with pytest.raises(RecordError) as caught:
        from_json(json.dumps(document), RunRecord, source="run.json")
    first, *lines = str(caught.value).splitlines()
    assert first == "run.json is not a valid RunRecord: 6 fields are wrong"
    assert '  steps[0].loss: should be a valid number, not "low"' in lines
    assert "  steps[0].typo: is not a field of this version" in lines
    assert "  variant: is missing" in lines
    assert any(line.startswith("  end: should be 'finished', 'stopped'") and '"stoped"' in line for line in lines)
    assert {line.split(":")[0].strip() for line in lines} >= {"repeat", "steps[0].skipped"}


def test_many_wrong_fields_are_counted_beyond_the_first():
    document = json.loads(to_json(_run()))
    document["steps"] = [{}] * 50
    with pytest.raises(RecordError, match="200 fields are wrong") as caught:
        from_json(json.dumps(document), RunRecord)
    assert str(caught.value).splitlines()[-1] == "  and 180 more"


def test_a_newer_version_names_both_and_what_to_do():
    with pytest.raises(RecordError) as caught:
        from_json(_document(version=VERSION + 1, unheard_of=1), RunRecord, source="run.json")
    message = str(caught.value)
    assert message.startswith(f"run.json is a record of version {VERSION + 1}; this ampwise ({__version__})")
    assert f"up to {VERSION}:" in message
    assert "pip install --upgrade ampwise" in message


@pytest.mark.parametrize("version", [0, -1, True, "1", None, 1.0])
def test_a_version_that_is_no_version_is_foreign(version):
    with pytest.raises(RecordError, match="not an ampwise record"):
        from_json(_document(version=version), RunRecord)


def test_another_kind_of_record_is_named():
    with pytest.raises(RecordError, match=r"run\.json holds a RunRecord, not a Recording"):
        from_json(to_json(_run()), Recording, source="run.json")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not valid JSON (line 1 column 1"),
        ("{", "cut short or damaged"),
        ("[]", "is JSON but not an ampwise record"),
        ('{"name": "left-pad", "version": "1.0.0"}', "is JSON but not an ampwise record"),
        ("[" * 100_000, "is not a record"),
        (b"\xff\xfe", "it is not UTF-8 text (byte 0)"),
        (b"\x80\x02}q\x00.", "it is not UTF-8 text (byte 0)"),
    ],
)
def test_what_is_no_record_is_refused_in_one_line(text, said):
    with pytest.raises(RecordError) as caught:
        from_json(text, Recording, source="run.json")
    assert str(caught.value).startswith("run.json ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 30, "9" * 5000])
def test_numbers_that_json_or_a_count_cannot_hold_are_refused(number):
    text = to_json(_run(repeat=77)).replace("77", number)
    with pytest.raises(RecordError, match=r"run\.json is not a record"):
        from_json(text, RunRecord, source="run.json")


def test_a_half_surrogate_is_refused():
    with pytest.raises(RecordError, match="half a surrogate pair"):
        from_json(_document(variant="\ud800"), RunRecord)


def test_text_in_errors_is_inert():
    with pytest.raises(RecordError) as caught:
        from_json(_document(**{"\x1b[31mred": 1}), RunRecord)
    assert "\x1b" not in str(caught.value)


def test_what_has_no_place_in_a_record_is_a_mistake_of_ours():
    with pytest.raises(TypeError, match="a set has no place in a record"):
        to_json(_run(notes={"a"}))


def test_a_missing_file_says_how_to_record_one(tmp_path):
    with pytest.raises(RecordError, match=r"one with: ampwise doctor --record .* or ampwise compare --record"):
        load_recording(tmp_path / "none.json")


def test_a_folder_is_no_record(tmp_path):
    with pytest.raises(RecordError, match="is a folder"):
        load_recording(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path):
    path = tmp_path / "run.json"
    path.touch(mode=0)
    with pytest.raises(RecordError, match="cannot read"):
        load_recording(path)


def test_a_path_that_cannot_be_written_leaves_nothing(tmp_path):
    with pytest.raises(UsageError, match="does not exist; create it"):
        save_recording(_run(), tmp_path / "no" / "run.json")
    assert list(tmp_path.iterdir()) == []


def _record_classes(kind, found):
    """The record classes that a record class reaches through its fields."""
    if dataclasses.is_dataclass(kind) and kind not in found:
        found.add(kind)
        for hint in typing.get_type_hints(kind).values():
            _record_classes(hint, found)
    for argument in typing.get_args(kind):
        _record_classes(argument, found)
    return found


def test_every_record_class_is_checked_strictly():
    classes = _record_classes(Recording, set())
    assert len(classes) > 5
    assert {kind.__pydantic_config__["extra"] for kind in classes} == {"forbid"}


def test_importing_records_leaves_pydantic_out():
    code = (
        "import sys, ampwise.records.files as f, ampwise.records.run as r\n"
        "f.to_json(r.Failure(kind='a', message='b'))\n"
        "print(sorted({'pydantic', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
