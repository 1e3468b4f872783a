"""Results for people: table, plot and words."""

from limbeck.report.results import Measured, Model, Pair, Results, Role, comparisons, plain
from limbeck.report.table import markdown, show
from limbeck.report.write import write_results

__all__ = ["Measured", "Model", "Pair", "Results", "Role", "comparisons", "markdown", "plain", "show", "write_results"]
