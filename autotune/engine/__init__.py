"""From a request to its answer: ``plan.plan`` and ``run.run``, and the run directory."""
