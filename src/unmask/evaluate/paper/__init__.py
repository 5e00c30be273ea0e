"""The paper's tables and figures as experiments: a TOML file each -> cells -> rows -> a table and figures.

EXPERIMENTS: name -> Experiment;  run(experiment, place, folder) -> figures of every cell;  output: table, pictures
"""

from unmask.evaluate.paper.plan import EXPERIMENTS, Cell, Experiment, Place

__all__ = ["EXPERIMENTS", "Cell", "Experiment", "Place"]
