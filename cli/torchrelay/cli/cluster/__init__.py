"""The same questions asked of a cluster: `kubectl torchrelay …`, by the resources that its controller keeps."""
