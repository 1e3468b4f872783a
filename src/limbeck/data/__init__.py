"""Text on its way to the model: reading, tokenising, packing, batching."""
