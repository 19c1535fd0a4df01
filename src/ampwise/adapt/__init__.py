"""Lets a plan move while a model trains: readings of the training raise groups of modules, and lower them again."""
