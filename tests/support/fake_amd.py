"""A libamd_smi.so that answers what a file says; every other function that amdsmi binds says "not supported"."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

NOT_SUPPORTED = 2
CODE = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
enum { NO_PERMISSION = 10, NO_DATA = 40, UMC = 1, XGMI = 128 };
static long long number(const char *key, long long missing)
{
    char line[128], name[64];
    long long value, found = missing;
    FILE *file = fopen(getenv("FAKE_AMD"), "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "%63s %lld", name, &value) == 2 && !strcmp(name, key)) found = value;
    if (file) fclose(file);
    return found;
}
int amdsmi_init(uint64_t flags) { (void)flags; return 0; }
int amdsmi_get_socket_handles(uint32_t *count, void **handles)
{
    if (handles) handles[0] = (void *)1;
    *count = 1;
    return 0;
}
int amdsmi_get_processor_handles(void *socket, uint32_t *count, void **handles)
{
    (void)socket;
    if (handles) handles[0] = (void *)2;
    *count = 1;
    return 0;
}
int amdsmi_get_gpu_device_uuid(void *gpu, unsigned int *size, char *text)
{
    (void)gpu;
    snprintf(text, *size, "aaff74a1-0000-1000-8000-000000000001");
    return 0;
}
int amdsmi_get_gpu_device_bdf(void *gpu, uint64_t *address) { (void)gpu; *address = 0x63ull << 8; return 0; }
int amdsmi_get_gpu_total_ecc_count(void *gpu, uint64_t *counts)
{
    (void)gpu;
    if (number("lost", 0)) return 15;
    counts[0] = (uint64_t)number("corrected", 0), counts[1] = (uint64_t)number("uncorrected", 0), counts[2] = 0;
    return 0;
}
int amdsmi_get_gpu_ecc_enabled(void *gpu, uint64_t *blocks) { (void)gpu; *blocks = UMC | XGMI; return 0; }
int amdsmi_get_gpu_ecc_count(void *gpu, uint64_t block, uint64_t *counts)
{
    (void)gpu;
    counts[0] = counts[1] = counts[2] = 0;
    if (block == UMC) counts[0] = (uint64_t)number("corrected", 0), counts[1] = (uint64_t)number("uncorrected", 0);
    return 0;
}
static long long xgmi_reset_at;
int amdsmi_gpu_xgmi_error_status(void *gpu, uint32_t *status)
{
    (void)gpu;
    *status = number("xgmi", 0) > xgmi_reset_at;
    return 0;
}
int amdsmi_reset_gpu_xgmi_error(void *gpu)
{
    (void)gpu;
    if (number("may-not-reset", 0)) return NO_PERMISSION;
    xgmi_reset_at = number("xgmi", 0);
    return 0;
}
int amdsmi_get_pcie_info(void *gpu, char *info)
{
    (void)gpu;
    memset(info, 0xff, PCIE_SIZE);
    *(uint16_t *)(info + PCIE_MAX_WIDTH) = 16;
    *(uint16_t *)(info + PCIE_WIDTH) = (uint16_t)number("width", 16);
    *(uint64_t *)(info + PCIE_REPLAYS) = (uint64_t)number("replays", 0);
    return 0;
}
int amdsmi_get_gpu_metrics_info(void *gpu, char *metrics)
{
    (void)gpu;
    memset(metrics, 0xff, METRICS_SIZE);
    if (number("old", 0)) *(uint32_t *)(metrics + THROTTLE_STATUS) = (uint32_t)number("throttled", 0);
    else *(uint64_t *)(metrics + PROCHOT) = (uint64_t)number("throttled", 0);
    return 0;
}
int amdsmi_init_gpu_event_notification(void *gpu) { (void)gpu; return 0; }
int amdsmi_set_gpu_event_notification_mask(void *gpu, uint64_t mask) { (void)gpu; return mask == 1 << 2 ? 0 : NO_DATA; }
typedef struct { void *gpu; uint32_t event; char message[256]; uint32_t padding; } event_t;
int amdsmi_get_gpu_event_notification(int timeout_ms, uint32_t *count, event_t *events)
{
    static long long told;
    for (int waited_ms = 0; waited_ms < timeout_ms; waited_ms += 5, usleep(5000))
        if (number("resets", 0) > told) {
            told++;
            *count = 1;
            events[0].gpu = (void *)2, events[0].event = 3;
            strcpy(events[0].message, "reset begins");
            return 0;
        }
    *count = 0;
    return NO_DATA;
}
int amdsmi_get_gpu_bad_page_info(void *gpu, uint32_t *count, void *pages)
{
    (void)gpu;
    if (pages) memset(pages, 0, 24 * *count);
    *count = (uint32_t)number("pages", 0);
    return 0;
}
int amdsmi_get_gpu_bad_page_threshold(void *gpu, uint32_t *pages) { (void)gpu; *pages = 10; return 0; }
int amdsmi_get_temp_metric(void *gpu, int sensor, int metric, int64_t *value)
{
    (void)gpu; (void)sensor;
    *value = metric == 0 ? number("temperature", 40) : 100;
    return 0;
}
"""


OFFSETS = """
from amdsmi import amdsmi_wrapper as w
pcie, metrics = w.amdsmi_pcie_info_t, w.amdsmi_gpu_metrics_t
found = {
    "PCIE_SIZE": w.ctypes.sizeof(pcie), "METRICS_SIZE": w.ctypes.sizeof(metrics),
    "PCIE_MAX_WIDTH": pcie.pcie_static.offset + w.struct_pcie_static_.max_pcie_width.offset,
    "PCIE_WIDTH": pcie.pcie_metric.offset + w.struct_pcie_metric_.pcie_width.offset,
    "PCIE_REPLAYS": pcie.pcie_metric.offset + w.struct_pcie_metric_.pcie_replay_count.offset,
    "THROTTLE_STATUS": metrics.throttle_status.offset, "PROCHOT": metrics.prochot_residency_acc.offset,
}
print(*(f"-D{name}={value}" for name, value in found.items()))
"""
"""Where amdsmi itself has the fields: its wrapper is the only header that is at hand."""


def build(root: Path) -> dict[str, str]:
    """The environment with which amdsmi finds it; `root/state` is what it answers."""
    spec = importlib.util.find_spec("amdsmi")
    assert spec is not None
    assert spec.origin is not None
    wrapper = Path(spec.origin).with_name("amdsmi_wrapper.py").read_text()
    names = set(re.findall(r"_libraries\['libamd_smi.so'\]\.(\w+)", wrapper))
    ours = set(re.findall(r"^int (\w+)\(", CODE, re.MULTILINE))
    library = root / "lib" / "libamd_smi.so"
    library.parent.mkdir(parents=True)
    environ = {"ROCM_PATH": str(root), "FAKE_AMD": str(root / "state")}
    _compile(library, _stubs(names))
    asked = [sys.executable, "-c", OFFSETS]
    done = subprocess.run(asked, env=os.environ | environ, capture_output=True, text=True, check=True)
    library.unlink()
    _compile(library, CODE + _stubs(names - ours), done.stdout.splitlines()[-1].split())
    (root / "state").write_text("")
    return environ


def _stubs(names: set[str]) -> str:
    return "".join(f"int {name}(void) {{ return {NOT_SUPPORTED}; }}\n" for name in sorted(names))


def _compile(library: Path, code: str, macros: list[str] | None = None) -> None:
    source = library.with_suffix(".c")
    source.write_text(code)
    subprocess.run(["cc", "-shared", "-fPIC", *(macros or []), "-o", str(library), str(source)], check=True)
