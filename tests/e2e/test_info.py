import json

from warm import fresh, python


def ampwise(*arguments, by=python):
    return by("-m", "ampwise", *arguments)


def test_info_prints_one_json_document():
    done = ampwise("info", "--json", by=fresh)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["recommended"] in {row["name"] for row in document["formats"]}
    assert done.stderr == ""


def test_a_device_that_is_not_there_is_refused_in_one_line():
    done = ampwise("info", "--device", "cuda:99")
    assert done.returncode == 3
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("ampwise: device cuda:99: ")


def test_a_misspelt_device_is_a_usage_error():
    done = ampwise("info", "--device", "cuad")
    assert done.returncode == 2
    assert '"cuad" is not a device' in done.stderr
