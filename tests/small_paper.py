"""An experiment like those of the paper, with two cells; a test adds its places."""

ALONE_AND_BEST = """
title = "Small"
where = "nowhere"
kind = "cells"
claim = "Nothing."

[all]
sampler = "uniform"
temperature = 1.0
steps = 2
particles = 2

[[axis]]
name = "search"
values = [{ label = "alone", search = "vanilla" }, { label = "E-BoN", search = "best-of-n" }]
"""
