"""Two versions side by side on the same cases: the comparison, its report."""
