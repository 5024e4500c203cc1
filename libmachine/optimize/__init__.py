"""Optimization: proposals, their exam, and the rule that decides, on practice cases."""
