"""The whole system, driven as a user drives it: commands in, output and exit codes out."""
