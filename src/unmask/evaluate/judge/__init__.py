"""Texts × an autoregressive judge -> perplexities, diversity, and figures with intervals.

load_judge(name) -> Judge;  opinions(judge, texts) -> Opinion of each;  figures(rows) -> means and correlations
"""

from unmask.evaluate.judge.figures import bootstrap, ceiling, figures, pearson, spearman
from unmask.evaluate.judge.judge import Judge
from unmask.evaluate.judge.load import DEFAULT, load_judge
from unmask.evaluate.judge.opinion import CONVENTIONS, Opinion, Rules, opinions
from unmask.evaluate.judge.parts import export
from unmask.evaluate.judge.rows import Sample, judged, read_samples

__all__ = [
    "CONVENTIONS",
    "DEFAULT",
    "Judge",
    "Opinion",
    "Rules",
    "Sample",
    "bootstrap",
    "ceiling",
    "export",
    "figures",
    "judged",
    "load_judge",
    "opinions",
    "pearson",
    "read_samples",
    "spearman",
]
