#include "driver.h"

#include "imitation.h"

API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
    return primary_context_state(device, flags, active);
}
