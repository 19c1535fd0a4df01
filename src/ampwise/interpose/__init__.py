"""The only place that replaces anything of torch or of Python. Each replacement is a row; each row has one owner."""
