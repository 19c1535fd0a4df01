from ampwise.observe.events import BackwardEnded, BackwardStarted, EventBus


def test_a_listener_hears_its_kind_from_subscription_to_undo():
    bus, heard = EventBus(), []
    bus.publish(BackwardStarted(roots=()))
    undo = bus.subscribe(BackwardStarted, heard.append)
    first = BackwardStarted(roots=())
    bus.publish(first)
    bus.publish(BackwardEnded(roots=()))
    undo()
    bus.publish(BackwardStarted(roots=()))
    undo()
    assert heard == [first]
    assert not bus.wants(BackwardStarted)


def test_an_undo_during_publication_spares_nobody_else():
    bus, heard = EventBus(), []
    undo = bus.subscribe(BackwardStarted, lambda _event: undo())
    bus.subscribe(BackwardStarted, heard.append)
    bus.publish(BackwardStarted(roots=()))
    bus.publish(BackwardStarted(roots=()))
    assert len(heard) == 2
