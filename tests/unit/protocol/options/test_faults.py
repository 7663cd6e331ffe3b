from __future__ import annotations

import pytest

from torchrelay.protocol.errors import UserError
from torchrelay.protocol.options.faults import DEVICE_KINDS, parse_fault


@pytest.mark.parametrize(
    "text",
    [
        "xid:rank=1,step=20,phase=forward,code=79",
        "straggler:rank=2,step=4,phase=forward,slow=2.5x",
        "exit:rank=0,step=1,phase=data,code=3",
        *(f"{kind}:rank=0,step=3,phase=gate" for kind in DEVICE_KINDS if kind != "xid"),
    ],
)
def test_a_fault_is_written_as_it_is_read(text: str) -> None:
    assert str(parse_fault(text)) == text


def test_an_xid_is_79_and_a_straggler_three_times_as_slow_unless_said_otherwise() -> None:
    assert parse_fault("xid:rank=0,step=1").code == 79
    assert parse_fault("straggler:rank=0,step=1").slow == 3.0


@pytest.mark.parametrize("kind", DEVICE_KINDS)
def test_faults_of_devices_are_told_from_those_of_processes(kind: str) -> None:
    assert parse_fault(f"{kind}:rank=0,step=1").is_of_a_device
    assert not parse_fault("kill:rank=0,step=1").is_of_a_device
    assert not parse_fault("straggler:rank=0,step=1").is_of_a_device


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("xid:rank=0,step=1,code=0", "the number of an XID"),
        ("ecc:rank=0,step=1,code=3", "'code=3' is not understood"),
        ("straggler:rank=0,step=1,slow=1x", "above 1, up to 100"),
        ("straggler:rank=0,step=1,slow=fast", "as in slow=3x"),
        ("raise:rank=0,step=1,phase=rebuild", "in the rebuild of a migration there is only kill and stop"),
        ("kill:rank=0,step=1,phase=quiesce", "optimizer, after-step, copy, prepare, transfer, rebuild, verify, save"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        parse_fault(text)
