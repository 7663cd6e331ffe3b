#include "reduce.h"

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace imitated {
namespace {
using c10::BFloat16;
using c10::Half;

template <class T>
T combine(T a, T b, ncclRedOp_t op) {
    switch (op) {
        case ncclProd: return a * b;
        case ncclMax: return std::max(a, b);
        case ncclMin: return std::min(a, b);
        default: return a + b;
    }
}

template <class T>
void reduce_as(T* into, char* const* given, int ranks, size_t count, const Reduction& reduction) {
    constexpr bool is_integer = std::is_integral_v<T>;
    double scale = reduction.scale_on_device ? read_scalar(reduction.scale_on_device, reduction.scale_type) : reduction.scale;
    if (!is_integer && reduction.op == ncclAvg) scale = 1.0 / ranks;
    auto element = [&](int rank, size_t i) {
        T value = ((const T*)given[rank])[i];
        return scale == 1 ? value : T(value * T(scale));
    };
    for (size_t i = 0; i < count; ++i) {
        T sum = element(0, i);
        for (int rank = 1; rank < ranks; ++rank) sum = combine<T>(sum, element(rank, i), reduction.op);
        into[i] = is_integer && reduction.op == ncclAvg ? T(sum / T(ranks)) : sum;
    }
}

// Calls `use` with a pointer of the C++ type of `type`. False for types that cannot be reduced.
template <class Use>
bool with_type(ncclDataType_t type, Use use) {
    switch (type) {
        case ncclInt8: return use((int8_t*)nullptr), true;
        case ncclUint8: return use((uint8_t*)nullptr), true;
        case ncclInt32: return use((int32_t*)nullptr), true;
        case ncclUint32: return use((uint32_t*)nullptr), true;
        case ncclInt64: return use((int64_t*)nullptr), true;
        case ncclUint64: return use((uint64_t*)nullptr), true;
        case ncclFloat16: return use((Half*)nullptr), true;
        case ncclBfloat16: return use((BFloat16*)nullptr), true;
        case ncclFloat32: return use((float*)nullptr), true;
        case ncclFloat64: return use((double*)nullptr), true;
        default: return false;
    }
}
}  // namespace

size_t width_of(ncclDataType_t type) {
    size_t width = 1;  // the types of one byte that cannot be reduced can still be moved
    with_type(type, [&](auto* t) { width = sizeof *t; });
    return width;
}

bool is_reducible(ncclDataType_t type) {
    return with_type(type, [](auto*) {});
}

double read_scalar(const void* address, ncclDataType_t type) {
    double value = 1;
    with_type(type, [&](auto* t) { value = (double)*(const std::remove_pointer_t<decltype(t)>*)address; });
    return value;
}

void reduce(char* into, char* const* given, int ranks, size_t count, ncclDataType_t type, const Reduction& reduction) {
    with_type(type, [&](auto* t) { reduce_as((decltype(t))into, given, ranks, count, reduction); });
}

}  // namespace imitated
