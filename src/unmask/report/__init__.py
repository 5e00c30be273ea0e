"""Traces -> pages that replay them."""
