"""Records what is done to leases in tests, and checks that history."""
