"""Job queues of others, each driven by a program of its own in a throw-away environment."""
