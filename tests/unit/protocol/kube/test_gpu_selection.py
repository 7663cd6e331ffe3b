"""Which GPUs a process in a pod was given."""

from __future__ import annotations

import pytest

from torchrelay.protocol.kube.gpu_selection import selection_of


@pytest.mark.parametrize(
    ("environ", "selection"),
    [
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-a"}, "GPU-a"),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b", "CUDA_VISIBLE_DEVICES": "1"}, "GPU-b"),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b", "CUDA_VISIBLE_DEVICES": "GPU-a"}, "GPU-a"),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-a", "CUDA_VISIBLE_DEVICES": ""}, ""),
        ({"AMD_VISIBLE_DEVICES": "0,2"}, "0,2"),
        ({"AMD_VISIBLE_DEVICES": "0,2", "HIP_VISIBLE_DEVICES": "1"}, "2"),
        ({"AMD_VISIBLE_DEVICES": "4,5,6", "ROCR_VISIBLE_DEVICES": "2,0", "CUDA_VISIBLE_DEVICES": "1"}, "4"),
        ({"AMD_VISIBLE_DEVICES": "all", "HIP_VISIBLE_DEVICES": "0"}, ""),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b", "HIP_VISIBLE_DEVICES": "1"}, "GPU-a,GPU-b"),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, ""),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, ""),
        ({}, ""),
    ],
)
def test_which_gpus_are_the_pod_s(environ: dict[str, str], selection: str) -> None:
    assert selection_of(environ) == selection
