"""A libamd_smi.so that answers what a file says; every other function that amdsmi binds says "not supported"."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

NOT_SUPPORTED = 2
CODE = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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


def build(root: Path) -> dict[str, str]:
    """The environment with which amdsmi finds it; `root/state` is what it answers."""
    spec = importlib.util.find_spec("amdsmi")
    assert spec is not None
    assert spec.origin is not None
    wrapper = Path(spec.origin).with_name("amdsmi_wrapper.py").read_text()
    names = set(re.findall(r"_libraries\['libamd_smi.so'\]\.(\w+)", wrapper))
    ours = set(re.findall(r"^int (\w+)\(", CODE, re.MULTILINE))
    stubs = "".join(f"int {name}(void) {{ return {NOT_SUPPORTED}; }}\n" for name in sorted(names - ours))
    library = root / "lib" / "libamd_smi.so"
    library.parent.mkdir(parents=True)
    (root / "fake.c").write_text(CODE + stubs)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(root / "fake.c")], check=True)
    (root / "state").write_text("")
    return {"ROCM_PATH": str(root), "FAKE_AMD": str(root / "state")}
