"""Run files: what people write, checked and turned into the model."""
