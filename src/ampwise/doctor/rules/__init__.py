"""The rules, one a file; ``all_rules`` of ``doctor.rule`` finds them by their names."""
