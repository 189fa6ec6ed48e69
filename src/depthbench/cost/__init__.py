"""What depth costs: analytic FLOPs."""
