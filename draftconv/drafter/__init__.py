"""What a drafter is, whatever trainer wrote it: canonical tensors and facts."""
