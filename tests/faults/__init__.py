"""Faults a careless change could make, each of which some test must catch."""
