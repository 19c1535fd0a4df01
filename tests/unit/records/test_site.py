from ampwise.records.site import Phase, Site


def test_where_is_as_much_as_is_known():
    assert Site(phase=Phase.FORWARD, file="train.py", line=31).where == "train.py:31"
    assert Site(phase=Phase.FORWARD, file="train.py").where == "train.py"
    assert not Site(phase=Phase.OTHER, line=31).where
