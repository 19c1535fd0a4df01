import recordings


def pytest_generate_tests(metafunc):
    if "any_recording" in metafunc.fixturenames:
        makers = recordings.ALL
        metafunc.parametrize("any_recording", [make() for make in makers], ids=[make.__name__ for make in makers])
