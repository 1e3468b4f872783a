"""Tasks that tell what an encoder is worth."""
