"""Putting students to work: how fast they are."""
