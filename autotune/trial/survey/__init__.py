"""Region survey: one instrumented step prices every recompute setting, and the process then switches between them."""
