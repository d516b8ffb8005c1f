"""What tests of fleets share: a provider that is never consistent at once, and requests."""
