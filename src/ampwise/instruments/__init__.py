"""Each watches a training loop and fills its part of a record; none judges, none knows another."""
