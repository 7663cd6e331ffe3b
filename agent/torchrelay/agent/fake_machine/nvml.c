/*
 * A libnvidia-ml.so.1 for machines without a GPU: it answers what a file says.
 *
 * TORCHRELAY_FAKE_NVML names the file; it is read again whenever it was replaced. Lines:
 *   gpu N KEY VALUE      a reading of device N; KEY is one of the names in `keys`, lost 1 is a device that is gone
 *   event SEQ N CODE     an XID of device N; those with a SEQ above the last one are delivered, in the file's order
 *   hang FUNCTION        calls of that function do not return for as long as the line is there
 *   gpus N               how many devices there are (64 at most)
 *
 * Only what nvidia-ml-py calls on torchrelay's behalf is here; for everything else it says "function not found".
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, TIMEOUT = 10, GPU_IS_LOST = 15 };
enum { MAX_GPUS = 64, MAX_EVENTS = 256, MAX_KEYS = 20 };
enum { VALUE_UNSIGNED_LONG_LONG = 3, UNSET = -1 };

static const char *keys[MAX_KEYS] = {
    "temperature", "slowdown", "ecc-corrected", "ecc-uncorrected", "remap-pending", "remap-failed", "retired-pending",
    "nvlink-errors", "pcie-replays", "recovery-action", "pcie-width", "pcie-lanes", "throttle", "nvlinks", "nvlinks-down",
    "lost", "ecc-lifetime", "retired-pages",
};
enum { TEMPERATURE, SLOWDOWN, ECC_C, ECC_U, REMAP_P, REMAP_F, RETIRED, NVLINK_ERR, REPLAYS, RECOVERY, WIDTH, LANES, THROTTLE,
       NVLINKS, NVLINKS_DOWN, LOST, ECC_LIFETIME, RETIRED_PAGES };

typedef struct { int index; long long value[MAX_KEYS]; } gpu_t;
typedef struct { gpu_t *device; unsigned long long type, data; unsigned int gpu_instance, compute_instance; } event_t;
typedef struct { long long seq; int gpu; unsigned long long code; } pending_t;
typedef struct { char legacy[16]; unsigned int domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;
typedef struct {
    uint32_t field, scope; int64_t timestamp, latency; int type; int status;
    union { double d; unsigned int ui; unsigned long ul; unsigned long long ull; long long ll; } value;
} field_t;

static gpu_t gpus[MAX_GPUS];
static pending_t events[MAX_EVENTS];
static int gpu_count = 1, event_count;
static long long last_seq = -1;
static char hanging[64];
static struct timespec read_at;
static off_t read_size = -1;
static ino_t read_inode;

static void defaults(void)
{
    static const long long healthy[MAX_KEYS] = {45, 90, 0, 0, 0, 0, 0, 0, 0, UNSET, 16, 16, 0, 0, 0, 0, 0, 0};
    for (int i = 0; i < MAX_GPUS; i++) {
        gpus[i].index = i;
        memcpy(gpus[i].value, healthy, sizeof healthy);
    }
    gpu_count = 1;
    event_count = 0;
    hanging[0] = 0;
}

static void take(const char *line)
{
    int n;
    long long seq, value;
    unsigned long long code;
    char key[64];
    if (sscanf(line, "gpus %d", &n) == 1 && n >= 0 && n <= MAX_GPUS) gpu_count = n;
    else if (sscanf(line, "hang %63s", key) == 1) strcpy(hanging, key);
    else if (sscanf(line, "event %lld %d %llu", &seq, &n, &code) == 3) {
        if (event_count < MAX_EVENTS && n >= 0 && n < MAX_GPUS) events[event_count++] = (pending_t){seq, n, code};
    } else if (sscanf(line, "gpu %d %63s %lld", &n, key, &value) == 3 && n >= 0 && n < MAX_GPUS) {
        for (int i = 0; i < MAX_KEYS; i++)
            if (keys[i] && !strcmp(keys[i], key)) gpus[n].value[i] = value;
    }
}

static void refresh(void)
{
    const char *path = getenv("TORCHRELAY_FAKE_NVML");
    struct stat s;
    char line[256];
    FILE *file;
    if (!path || stat(path, &s)) return;
    if (s.st_ino == read_inode && s.st_size == read_size && s.st_mtim.tv_sec == read_at.tv_sec && s.st_mtim.tv_nsec == read_at.tv_nsec)
        return;
    if (!(file = fopen(path, "r"))) return;
    read_inode = s.st_ino, read_size = s.st_size, read_at = s.st_mtim;
    defaults();
    while (fgets(line, sizeof line, file)) take(line);
    fclose(file);
}

static void enter(const char *function)
{
    refresh();
    while (!strcmp(hanging, function)) {
        usleep(20000);
        refresh();
    }
}

static int reading(gpu_t *gpu, const char *function, int key, unsigned int *value)
{
    enter(function);
    if (gpu->value[LOST]) return GPU_IS_LOST;
    if (gpu->value[key] == UNSET) return NOT_SUPPORTED;
    *value = (unsigned int)gpu->value[key];
    return SUCCESS;
}

int nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    defaults();
    read_size = -1;
    enter("nvmlInit");
    for (int i = 0; i < event_count; i++)
        if (events[i].seq > last_seq) last_seq = events[i].seq;
    return SUCCESS;
}
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code)
{
    switch (code) {
    case GPU_IS_LOST: return "GPU is lost";
    case TIMEOUT: return "Timeout";
    case NOT_SUPPORTED: return "Not Supported";
    default: return "an error of the fake driver";
    }
}
int nvmlDeviceGetCount_v2(unsigned int *count) { enter("nvmlDeviceGetCount"); *count = (unsigned int)gpu_count; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, gpu_t **gpu)
{
    if (index >= (unsigned int)gpu_count) return INVALID_ARGUMENT;
    *gpu = &gpus[index];
    return SUCCESS;
}
int nvmlDeviceGetUUID(gpu_t *gpu, char *text, unsigned int size)
{
    snprintf(text, size, "GPU-fa4e0000-0000-0000-0000-%012d", gpu->index);
    return SUCCESS;
}
int nvmlDeviceGetName(gpu_t *gpu, char *text, unsigned int size) { (void)gpu; snprintf(text, size, "Fake H100"); return SUCCESS; }
int nvmlDeviceGetPciInfo_v3(gpu_t *gpu, pci_t *pci)
{
    memset(pci, 0, sizeof *pci);
    pci->bus = 0x10u + (unsigned int)gpu->index;
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02x:00.0", pci->bus);
    snprintf(pci->legacy, sizeof pci->legacy, "0000:%02x:00.0", pci->bus);
    return SUCCESS;
}
int nvmlDeviceGetTemperature(gpu_t *gpu, int sensor, unsigned int *celsius)
{
    (void)sensor;
    return reading(gpu, "nvmlDeviceGetTemperature", TEMPERATURE, celsius);
}
int nvmlDeviceGetTemperatureThreshold(gpu_t *gpu, int threshold, unsigned int *celsius)
{
    return threshold == 1 ? reading(gpu, "nvmlDeviceGetTemperatureThreshold", SLOWDOWN, celsius) : NOT_SUPPORTED;
}
int nvmlDeviceGetCurrPcieLinkWidth(gpu_t *gpu, unsigned int *width) { return reading(gpu, "nvmlDeviceGetCurrPcieLinkWidth", WIDTH, width); }
int nvmlDeviceGetMaxPcieLinkWidth(gpu_t *gpu, unsigned int *width) { return reading(gpu, "nvmlDeviceGetMaxPcieLinkWidth", LANES, width); }
int nvmlDeviceGetCurrentClocksEventReasons(gpu_t *gpu, unsigned long long *reasons)
{
    unsigned int throttled = 0;
    int status = reading(gpu, "nvmlDeviceGetCurrentClocksEventReasons", THROTTLE, &throttled);
    *reasons = throttled ? 0x8 : 0;
    return status;
}
int nvmlDeviceGetNvLinkState(gpu_t *gpu, unsigned int link, int *active)
{
    enter("nvmlDeviceGetNvLinkState");
    if (gpu->value[LOST]) return GPU_IS_LOST;
    if (link >= gpu->value[NVLINKS]) return INVALID_ARGUMENT;
    *active = link >= gpu->value[NVLINKS_DOWN];
    return SUCCESS;
}
int nvmlDeviceGetFieldValues(gpu_t *gpu, int count, field_t *fields)
{
    static const struct { uint32_t field; int key; } known[] = {
        {3, ECC_C}, {4, ECC_U}, {144, REMAP_P}, {145, REMAP_F}, {31, RETIRED}, {52, NVLINK_ERR}, {94, REPLAYS}, {230, RECOVERY},
        {6, ECC_LIFETIME}, {29, RETIRED_PAGES},
    };
    enter("nvmlDeviceGetFieldValues");
    if (gpu->value[LOST]) return GPU_IS_LOST;
    for (int i = 0; i < count; i++) {
        fields[i].status = NOT_SUPPORTED;
        for (size_t j = 0; j < sizeof known / sizeof *known; j++)
            if (known[j].field == fields[i].field && gpu->value[known[j].key] != UNSET) {
                fields[i].status = SUCCESS;
                fields[i].type = VALUE_UNSIGNED_LONG_LONG;
                fields[i].value.ull = (unsigned long long)gpu->value[known[j].key];
            }
    }
    return SUCCESS;
}
int nvmlEventSetCreate(void **set) { static int one; *set = &one; return SUCCESS; }
int nvmlEventSetFree(void *set) { (void)set; return SUCCESS; }
int nvmlDeviceRegisterEvents(gpu_t *gpu, unsigned long long types, void *set) { (void)gpu; (void)types; (void)set; return SUCCESS; }
int nvmlEventSetWait_v2(void *set, event_t *event, unsigned int timeout_ms)
{
    (void)set;
    for (unsigned int waited_ms = 0;; waited_ms += 50) {  /* the real one sleeps in the kernel: a fake that looks more often costs more than what is measured with it */
        enter("nvmlEventSetWait");
        for (int i = 0; i < event_count; i++)
            if (events[i].seq > last_seq) {
                last_seq = events[i].seq;
                *event = (event_t){&gpus[events[i].gpu], 8, events[i].code, 0xFFFFFFFFu, 0xFFFFFFFFu};
                return SUCCESS;
            }
        if (waited_ms >= timeout_ms) return TIMEOUT;
        usleep(50000);
    }
}
