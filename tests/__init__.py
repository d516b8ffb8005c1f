"""The tests; importable, so that they share builders."""
