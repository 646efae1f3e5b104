"""Records and outcomes as the core passes them on."""
