"""Ray: where the ranks of trials run, and who drives the trials."""
