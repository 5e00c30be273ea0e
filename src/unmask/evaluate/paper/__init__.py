"""The paper's tables and figures as experiments: a TOML file each -> cells -> rows -> a table and figures.

EXPERIMENTS: name -> Experiment;  TABLES: table2, fig5 … -> Experiment;  cells: run(PaperRun) -> figures of every cell
output: the page of a place, pictures;  table: the page of all places, models and seeds
"""

from unmask.evaluate.paper.plan import EXPERIMENTS, TABLES, Cell, Experiment, Place

__all__ = ["EXPERIMENTS", "TABLES", "Cell", "Experiment", "Place"]
