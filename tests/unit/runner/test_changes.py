import os

import pytest

from ampwise.runner import changes
from ampwise.runner.changes import ChangeWatch, snapshot, tracker_environment


def watch(folder):
    return ChangeWatch(str(folder), scratch=str(folder / "scratch"))


def test_new_changed_and_gone_files_are_listed(tmp_path):
    for name in ("same", "changed", "gone"):
        (tmp_path / name).write_text(name)
    before = watch(tmp_path)
    (tmp_path / "changed").write_text("something else")
    (tmp_path / "gone").unlink()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "new").write_text("")
    assert before.notes() == (
        f"changed meanwhile in {tmp_path}, by the script or another program: changed, gone (gone), runs/new",
    )


def test_a_file_rewritten_with_as_many_bytes_is_seen_by_its_time(tmp_path):
    (tmp_path / "a").write_text("1")
    before = watch(tmp_path)
    (tmp_path / "a").write_text("2")
    os.utime(tmp_path / "a", ns=(1, 1))
    assert "a" in before.notes()[0]


def test_what_all_runs_saved_is_named_once_and_is_no_change(tmp_path):
    before = watch(tmp_path)
    for run in ("fp32-0", "bf16-0"):
        (tmp_path / "scratch" / run / "runs").mkdir(parents=True)
        (tmp_path / "scratch" / run / "best.pt").write_text("")
    (tmp_path / "scratch" / "bf16-0" / "runs" / "events").write_text("")
    assert before.notes() == (
        f"what the script saved went to {tmp_path}/scratch, a folder a run: best.pt, runs/events",
    )


@pytest.mark.parametrize(
    "name",
    [
        ".git",
        "__pycache__",
        ".venv",
        "node_modules",
        ".pytest_cache",
        ".ruff_cache",
        ".hypothesis",
        ".import_linter_cache",
    ],
)
def test_folders_of_tools_are_passed_over(tmp_path, name):
    before = watch(tmp_path)
    (tmp_path / name).mkdir()
    (tmp_path / name / "a").write_text("")
    assert before.notes() == ()


def test_many_names_are_cut(tmp_path):
    before = watch(tmp_path)
    for number in range(11):
        (tmp_path / f"{number:02}").write_text("")
    assert before.notes()[0].endswith("06, 07 and 3 more")


def test_a_folder_too_large_is_said_to_be(tmp_path, monkeypatch):
    monkeypatch.setattr(changes, "_MAX_FILES", 3)
    for number in range(5):
        (tmp_path / str(number)).write_text("")
    assert len(snapshot(str(tmp_path))) == 3
    before = watch(tmp_path)
    (tmp_path / "0").unlink()  # which lets the snapshot reach a file it did not reach before
    assert before.notes()[-1] == f"only 3 files of {tmp_path} were looked at for changes"
    assert not any("(gone)" not in note and "changed meanwhile" in note for note in before.notes())


def test_links_that_lead_nowhere_do_no_harm(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "none")
    assert list(snapshot(str(tmp_path))) == ["link"]


def test_trackers_stay_offline_and_below_the_scratch_folder(tmp_path):
    environ = tracker_environment(str(tmp_path))
    assert environ["WANDB_MODE"] == "offline"
    assert environ["WANDB_DIR"] == str(tmp_path)
    assert environ["MLFLOW_TRACKING_URI"] == f"file://{tmp_path}/mlruns"
