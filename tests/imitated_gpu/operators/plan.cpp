// An operator can be queued if its "meta" kernel tells what its results look like, or if it only changes what there is.
#include <ATen/core/LegacyTypeDispatch.h>

#include "call.h"
#include "names.h"

namespace imitated {
namespace {
bool can_be_planned(const Call& call) {
    auto& signature = call.signature;
    bool writes_to_host = false;
    call.for_written([&](const Tensor& tensor) { writes_to_host |= !tensor.is_cuda(); });
    bool has_hidden_generator = signature.is_random && !signature.takes_generator;
    return signature.returns_tensors_only && !writes_to_host && !has_hidden_generator &&
           (signature.has_meta || signature.is_in_place);
}

Tensor on_device(const Tensor& meta, at::Device device) {
    if (!meta.defined()) return meta;
    return at::empty_strided(meta.sizes(), meta.strides(), meta.options().device(device));
}

void resize_outputs(const Call& call, Twins& twins) {
    call.for_written([&](const Tensor& tensor) {
        auto meta = twins(tensor);
        if (meta.sizes() == tensor.sizes()) return;
        tensor.resize_(meta.sizes());
        tensor.as_strided_(meta.sizes(), meta.strides());
    });
}
}  // namespace

std::optional<Stack> plan(const Call& call) {
    if (!can_be_planned(call)) return {};
    Twins twins(meta_twin);
    Stack made;
    if (call.signature.has_meta) {
        made = call.arguments_for(at::kMeta, std::ref(twins));
        try {
            at::AutoDispatchBelowADInplaceOrView guard;
            call.op.callBoxed(made);
        } catch (const std::exception& error) {
            if (getenv(names::TRACE_VARIABLE)) fprintf(stderr, "imitated GPU: cannot plan it: %.300s\n", error.what());
            return {};  // the host then runs the operator at once, and gets the same error if it is one
        }
    }
    resize_outputs(call, twins);
    return call.results(made, [&](const Tensor& meta) { return on_device(meta, call.device); });
}

}  // namespace imitated
