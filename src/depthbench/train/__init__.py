"""Controlled training: the recipe, the optimizer's groups, checkpoints that survive a kill, and the loop."""
