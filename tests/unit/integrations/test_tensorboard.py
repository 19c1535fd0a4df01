import math
import sys
from dataclasses import replace

import pytest

import examined
import recordings
from ampwise._base.errors import CannotRunError
from ampwise.doctor.diagnose import diagnose
from ampwise.integrations import tensorboard
from ampwise.integrations.tensorboard import raw_histogram, scalars, write_events


class FakeWriter:
    """Keeps what it is given, by its folder's name."""

    made: dict = {}  # noqa: RUF012  # filled anew by each test

    def __init__(self, folder):
        self.scalars, self.histograms, self.texts, self.closed = [], {}, {}, False
        FakeWriter.made[folder.rpartition("/")[2]] = self

    def add_scalar(self, tag, value, step):
        self.scalars.append((tag, value, step))

    def add_histogram_raw(self, tag, *, global_step, **fields):
        self.histograms[tag] = {**fields, "step": global_step}

    def add_text(self, tag, text, step):
        self.texts[tag] = (text, step)

    def close(self):
        self.closed = True


@pytest.fixture
def written(monkeypatch, tmp_path):
    monkeypatch.setattr(tensorboard, "_writer_class", lambda: FakeWriter)
    monkeypatch.setattr(FakeWriter, "made", {})
    write_events(examined.faulty(), tmp_path)
    return FakeWriter.made


def test_each_run_has_a_folder_of_its_own(written):
    assert list(written) == ["watched_fp16_1", "in_fp32_fp32_1"]
    assert all(writer.closed for writer in written.values())


def test_the_curves_and_the_histograms_are_written(written):
    writer = written["watched_fp16_1"]
    assert {tag for tag, _, _ in writer.scalars} == {"loss", "loss_scale", "skipped_steps", "step_ms"}
    assert ("skipped_steps", 6.0, 59) in writer.scalars
    assert "log2_activation/layers.1.wo" in writer.histograms
    assert "log2_weight/layers.0.weight" in writer.histograms
    assert "log2_activation/head" not in writer.histograms  # it holds no finite number


def test_the_findings_are_a_text_of_the_first_run(monkeypatch, tmp_path):
    monkeypatch.setattr(tensorboard, "_writer_class", lambda: FakeWriter)
    monkeypatch.setattr(FakeWriter, "made", {})
    recording = examined.faulty()
    diagnosis = diagnose(recording)
    write_events(recording, tmp_path, diagnosis=diagnosis)
    first, *others = FakeWriter.made.values()
    text, step = first.texts["findings"]
    assert step == recording.runs[0].steps[-1].index
    assert all(finding.rule in text for finding in diagnosis.findings)
    assert diagnosis.findings[0].remedy.split()[-1] in text
    assert [writer.texts for writer in others] == [{}] * len(others)
    lines = text.splitlines()
    assert all(line.startswith("    ") for line in lines if line), "Markdown shows such a block as it is"
    assert max(map(len, lines)) <= 100


def test_a_loss_that_is_not_finite_is_a_point_too(written):
    assert any(tag == "loss" and math.isnan(value) for tag, value, _ in written["watched_fp16_1"].scalars)


def test_a_buckets_limit_lies_above_its_numbers():
    raw = raw_histogram(examined.histogram(1.0, 1.9, 4.0))
    assert raw["bucket_limits"] == [1.0, 2.0, 3.0]
    assert raw["bucket_counts"] == [2, 0, 1]
    assert (raw["min"], raw["max"], raw["num"]) == (0.0, 3.0, 3)


def test_a_second_optimizers_curves_are_apart():
    run = examined.watched()
    mixed = replace(run, steps=tuple(replace(step, optimizer=step.index % 2) for step in run.steps))
    assert {one.tag for one in scalars(mixed)} >= {"loss", "loss/optimizer_2"}


def test_hostile_names_make_harmless_folders(monkeypatch, tmp_path):
    monkeypatch.setattr(tensorboard, "_writer_class", lambda: FakeWriter)
    monkeypatch.setattr(FakeWriter, "made", {})
    write_events(recordings.hostile(), tmp_path)
    assert not [name for name in FakeWriter.made if set(name) & set("/\\<>:. \x1b")]


def test_without_the_package_the_command_to_install_it_is_told(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(CannotRunError, match=r"pip install 'ampwise\[tensorboard\]'"):
        write_events(examined.faulty(), tmp_path)
