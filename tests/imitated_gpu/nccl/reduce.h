// Element types and reductions.
#pragma once
#include <nccl.h>

#include <cstddef>

namespace imitated {

// `scale` is applied to what each rank gives, before the reduction (ncclAvg of floating point, and PreMulSum). One that lies on
// the device is read when the collective runs.
struct Reduction {
    ncclRedOp_t op = ncclSum;
    double scale = 1;
    const void* scale_on_device = nullptr;
    ncclDataType_t scale_type = ncclFloat32;
};

size_t width_of(ncclDataType_t type);
bool is_reducible(ncclDataType_t type);
double read_scalar(const void* address, ncclDataType_t type);

// into[i] = gathered over ranks in ascending order; `given(rank)` is what the rank gave.
void reduce(char* into, char* const* given, int ranks, size_t count, ncclDataType_t type, const Reduction& reduction);

}  // namespace imitated
