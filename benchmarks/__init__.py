"""Measurements: each against a peer or a naive reference in the same run, printed as JSON."""
