"""What is said and tried where buffers do not fit a scope."""
