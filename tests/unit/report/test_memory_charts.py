import examined
from ampwise.records.site import Phase
from ampwise.report.memory_charts import memory_timeline


def test_the_areas_add_up_to_the_total_at_every_moment():
    points = examined.memory().points
    figure = memory_timeline(points)
    heights = [sum(sizes) for sizes in zip(*(trace["y"] for trace in figure["data"]), strict=True)]
    assert heights == [point.total_bytes / 2**20 for point in points]
    assert [trace["name"] for trace in figure["data"]] == ["parameter", "activation"]
    assert figure["layout"]["yaxis"]["title"]["text"] == "MiB"


def test_the_peak_and_the_parts_of_the_step_are_named():
    record = examined.memory()
    figure = memory_timeline(record.points, record.peak)
    texts = {note["text"]: note["x"] for note in figure["layout"]["annotations"]}
    assert texts["peak 120 MiB"] == 20
    assert {"forward", "backward"} <= set(texts)
    assert [line["x0"] for line in figure["layout"]["shapes"]] == [20]


def test_a_part_too_short_for_its_name_has_none():
    points = (*(examined.point(event, Phase.FORWARD, 1) for event in range(50)), examined.point(50, Phase.OPTIMIZER, 1))
    texts = [note["text"] for note in memory_timeline(points)["layout"]["annotations"]]
    assert "optimizer" not in texts


def test_no_points_are_no_figure():
    assert memory_timeline(()) is None


def test_the_names_of_the_steps_parts_stand_above_the_peaks():
    points = tuple(examined.point(event, Phase.FORWARD, 1) for event in range(50))
    made = memory_timeline(points)["layout"]
    part, peak = made["annotations"]
    height = made["height"] - made["margin"]["t"] - made["margin"]["b"]
    peaks_name = height * peak["y"] / made["yaxis"]["range"][1] - peak["ay"] + 16
    assert peaks_name < height * part["y"] - 16
