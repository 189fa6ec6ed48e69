"""The LLaMA-style backbone that every design shares."""
