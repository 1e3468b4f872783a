"""Encoders: families, strict loading, students, feature capture and cost."""
