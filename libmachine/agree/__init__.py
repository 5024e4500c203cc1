"""How far graders and people agree: pairs, figures, the report."""
