"""Texts × an autoregressive judge -> perplexities, diversity, and figures with intervals.

load_judge(name) -> Judge;  opinions(judge, texts) -> Opinion of each;  figures(rows) -> means and correlations
"""

from unmask.evaluate.judge.files import DEFAULT, Reader, export, load_judge
from unmask.evaluate.judge.judge import CONVENTIONS, LENGTH, Judge, Opinion, Rules, diversity, opinions
from unmask.evaluate.judge.rows import Sample, figures, judged, read_samples
from unmask.evaluate.stats import bootstrap, ceiling, pearson, spearman

__all__ = [
    "CONVENTIONS",
    "DEFAULT",
    "LENGTH",
    "Judge",
    "Opinion",
    "Reader",
    "Rules",
    "Sample",
    "bootstrap",
    "ceiling",
    "diversity",
    "export",
    "figures",
    "judged",
    "load_judge",
    "opinions",
    "pearson",
    "read_samples",
    "spearman",
]
