"""Explanations as a good operator wants to read them, written by hand before the code was."""
