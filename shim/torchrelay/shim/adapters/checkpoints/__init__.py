"""torch.distributed.checkpoint: saves by a thread, and plans that it keeps."""
