"""What to try next: candidate space, planner, certificate, study."""
