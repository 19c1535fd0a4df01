"""The only place that knows torch versions or private torch names; one file a topic."""
