"""Texts × an autoregressive judge -> perplexities, diversity, and figures with intervals.

load_judge(name) -> Judge;  opinions(judge, texts) -> Opinion of each;  figures(rows) -> means and correlations
"""

from unmask.judge.figures import bootstrap, ceiling, figures, pearson, spearman
from unmask.judge.judge import Judge
from unmask.judge.load import DEFAULT, load_judge
from unmask.judge.opinion import CONVENTIONS, Opinion, Rules, opinions
from unmask.judge.parts import export
from unmask.judge.rows import Sample, judged, read_samples

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
