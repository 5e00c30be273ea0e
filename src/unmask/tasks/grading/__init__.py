"""Answers -> verdicts."""
