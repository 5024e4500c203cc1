"""Cases and runs in the files of other tools: Inspect AI, promptfoo, openai-evals, CSV."""
