"""The gate: questions, measurement, the rule, verdicts as proof, and what hooks make of them."""
