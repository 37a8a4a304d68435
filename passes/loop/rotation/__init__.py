"""What `rotate-carried` is made of."""
