"""Identities: keys, certificates, and the folder of the authority that signs them."""
