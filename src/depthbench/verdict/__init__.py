"""Tables to verdicts: the tidy table of finished runs, the choice of learning rates, the statistics. Nothing here imports torch."""
