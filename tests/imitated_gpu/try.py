"""A first use of what was built."""

import torch

import imitated_gpu

a = torch.arange(6.0, device="cuda").reshape(2, 3)
assert (a @ a.T).tolist() == [[5, 14], [14, 50]]
assert imitated_gpu.counts().skipped_kernels == 0
print(f"torch {torch.__version__} on the {torch.cuda.get_device_name()}")
