"""Pipelines of several runs and measurements."""
