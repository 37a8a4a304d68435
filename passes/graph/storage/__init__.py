"""What `storage-type` is made of: which values and which groups are stored narrow."""
