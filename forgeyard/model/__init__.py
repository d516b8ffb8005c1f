"""Immutable nouns of the product; imports next to nothing beyond the standard library."""
