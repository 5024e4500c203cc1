"""One machine's scores on its cases: figures, the work, the report."""
