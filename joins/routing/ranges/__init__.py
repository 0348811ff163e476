"""Range routing: units hold ranges of a column, cut at quantiles of what was seen."""
