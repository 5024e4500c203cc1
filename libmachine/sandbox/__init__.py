"""Where what a model writes is run: bubblewrap, else something weaker that says so."""
