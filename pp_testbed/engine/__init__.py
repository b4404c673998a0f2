"""One loop under all studies: plan, batch, run here or elsewhere, keep. Knows nothing of what is computed."""
