"""The kinds of evidence that sources report, and the verdicts that are made of them."""

from __future__ import annotations

IGNORE = "ignore"
WATCH = "watch"
MIGRATE = "migrate"
REPLACE = "replace"
STOP = "stop"
DONE = "done"
OBSERVED = "observed"
REFUSED = "refused"
TOLD = "told"
OUTCOMES_OF_VERDICTS = (DONE, TOLD, OBSERVED, REFUSED)
ACTIONS = (IGNORE, WATCH, MIGRATE, REPLACE, STOP)
"""From mild to severe. `migrate`: planned, while the rank still runs; `stop`: the program's own fault."""

DEVICE = "device"
NODE = "node"
NOBODY = "no"
QUARANTINES = (NOBODY, DEVICE, NODE)

DRIVER = "-driver"
"""Behind the name of a source: the device that all processes of a machine with its GPUs use."""

# Events: each is one occurrence.
XID = "xid"
SXID = "sxid"
GPU_LOST = "gpu-lost"
RECOVERY_ACTION = "gpu-recovery-action"
AMD_RESET = "amd-reset"
OOM_PROGRAM = "oom-program"
OOM_NODE = "oom-node"
EXIT = "exit"
EDAC_UNCORRECTED = "edac-uncorrected"
EDAC_CORRECTED = "edac-corrected"
IO_ERROR = "io-error"
LINK_FLAP = "link-flap"
SOURCE_DEAD = "source-dead"
SDC = "sdc"
FLIGHT_RECORDER = "flight-recorder"

# Counters: `value` is by how much it went up.
ECC_UNCORRECTED = "gpu-ecc-uncorrected"
ECC_CORRECTED = "gpu-ecc-corrected"
NVLINK_ERRORS = "gpu-nvlink-errors"
PCIE_REPLAYS = "gpu-pcie-replays"
HW_SLOWDOWN = "gpu-hw-slowdown"
RAS_UNCORRECTED = "amd-ras-uncorrected"
RAS_CORRECTED = "amd-ras-corrected"
XGMI_ERRORS = "amd-xgmi-errors"
PORT_COUNTERS = (
    "excessive_buffer_overrun_errors",
    "local_link_integrity_errors",
    "rnr_nak_retry_err",
    "symbol_error",
    "link_error_recovery",
    "port_rcv_errors",
    "local_ack_timeout_err",
    "port_xmit_discards",
    "roce_slow_restart",
    "carrier_changes",
)
"""As sysfs names them; the kind of each is `port-` and the name."""
PORT = "port-"

# Levels: `value` is what it is now; it holds until the next one.
TEMPERATURE_MARGIN = "gpu-temperature-margin"
REMAP_PENDING = "gpu-remap-pending"
REMAP_FAILED = "gpu-remap-failed"
RETIRED_PENDING = "gpu-retired-pending"
RETIRED_PAGES = "gpu-retired-pages"
ECC_LIFETIME = "gpu-ecc-lifetime"
DCGM_HEALTH = "dcgm-health"
NVLINK_DOWN = "gpu-nvlink-down"
PCIE_WIDTH = "gpu-pcie-width"
BAD_PAGES = "amd-bad-pages"
LINK_DOWN = "link-down"
DRIVER_HANG = "driver-hang"
STRAGGLER = "straggler"
CHECKPOINT_AGE = "checkpoint-age"
CHECKPOINT_BROKEN = "checkpoint-broken"
NODE_SILENT = "node-silent"
NODE_CONDITION = "node-condition"
HOST_CPU = "host-cpu"

LEVELS = (
    TEMPERATURE_MARGIN,
    REMAP_PENDING,
    REMAP_FAILED,
    RETIRED_PENDING,
    RETIRED_PAGES,
    ECC_LIFETIME,
    DCGM_HEALTH,
    NVLINK_DOWN,
    PCIE_WIDTH,
    BAD_PAGES,
    LINK_DOWN,
    DRIVER_HANG,
    STRAGGLER,
    CHECKPOINT_AGE,
    CHECKPOINT_BROKEN,
    NODE_SILENT,
    NODE_CONDITION,
    HOST_CPU,
)
COUNTERS = (
    ECC_UNCORRECTED,
    ECC_CORRECTED,
    NVLINK_ERRORS,
    PCIE_REPLAYS,
    HW_SLOWDOWN,
    RAS_UNCORRECTED,
    RAS_CORRECTED,
    XGMI_ERRORS,
    *(PORT + name for name in PORT_COUNTERS),
)
EVENTS = (
    XID,
    SXID,
    GPU_LOST,
    RECOVERY_ACTION,
    AMD_RESET,
    OOM_PROGRAM,
    OOM_NODE,
    EXIT,
    EDAC_UNCORRECTED,
    EDAC_CORRECTED,
    IO_ERROR,
    LINK_FLAP,
    SOURCE_DEAD,
    SDC,
    FLIGHT_RECORDER,
)
EXPLAINING = (HOST_CPU,)
"""Kinds that explain other evidence: where no row speaks of them, there is nothing to tell."""
KINDS = (*EVENTS, *COUNTERS, *LEVELS)
