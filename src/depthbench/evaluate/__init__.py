"""What a trained model is worth: validation loss."""
