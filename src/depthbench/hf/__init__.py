"""Hugging Face checkpoints: reading them, and giving ours away in their format."""
