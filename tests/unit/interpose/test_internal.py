"""Who sees a thread's calls."""

import threading

from ampwise.interpose.internal import announced, internal, is_hidden, is_internal, users_code


def test_internal_hides_from_everybody_and_announced_from_interceptors_only():
    seen = [(is_internal(), is_hidden())]
    with internal():
        seen.append((is_internal(), is_hidden()))
    with announced():
        seen.append((is_internal(), is_hidden()))
        with internal():
            seen.append((is_internal(), is_hidden()))
            with users_code():
                seen.append((is_internal(), is_hidden()))
            seen.append((is_internal(), is_hidden()))
    seen.append((is_internal(), is_hidden()))
    assert seen == [
        (False, False),
        (True, True),
        (False, True),
        (True, True),
        (False, False),
        (True, True),
        (False, False),
    ]


def test_another_thread_is_not_hidden():
    seen = []
    with internal():
        thread = threading.Thread(target=lambda: seen.append(is_hidden()))
        thread.start()
        thread.join()
    assert seen == [False]
