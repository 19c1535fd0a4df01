import safetensors.torch
import torch

from ampwise.estimate.untouched import files_untouched


def test_weights_are_not_written_and_empty_folders_are_removed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept").mkdir()
    with files_untouched(str(tmp_path / "scratch")):
        (tmp_path / "out" / "checkpoint-1").mkdir(parents=True)
        (tmp_path / "out" / "checkpoint-1" / "config.json").write_text("{}")
        (tmp_path / "kept" / "logs").mkdir()
        safetensors.torch.save_file({"x": torch.zeros(3)}, "model.safetensors")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["kept", "scratch"]
    assert list((tmp_path / "kept").iterdir()) == []
    written = {one.name for one in (tmp_path / "scratch").rglob("*") if one.is_file()}
    assert written == {"config.json"}
