"""Comparing what must agree in the store, and repairing what does not."""
