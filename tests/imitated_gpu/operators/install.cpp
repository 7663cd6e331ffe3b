// Puts `run` in the place of the CUDA kernel of each operator that has a CPU kernel.
#include <ATen/core/CachingHostAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Logging.h>
#include <torch/library.h>

#include <unordered_set>

#include "../runtime/imitation.h"
#include "run.h"

C10_DECLARE_int(caffe2_log_level);

namespace imitated {
namespace {
// Their CUDA form launches no kernel: they make storage, change a tensor, or read it through the runtime.
const std::unordered_set<std::string> KEPT = {
    "aten::empty", "aten::empty_strided", "aten::set_", "aten::resize_", "aten::record_stream", "aten::_pin_memory",
    "aten::is_pinned", "aten::is_set_to", "aten::_local_scalar_dense", "aten::_efficientzerotensor",
    "aten::_copy_from_and_resize",
    // Have a form of their own below.
    "aten::copy_", "aten::native_dropout", "aten::_fused_sdp_choice",
};

class Replacement : public c10::OperatorKernel {
  public:
    explicit Replacement(const Operator& op) : signature_(op) {}
    void operator()(const Operator& op, c10::DispatchKeySet, Stack* stack) { run(op, signature_, stack); }

  private:
    Signature signature_;
};

bool is_replaced(const Operator& op) {
    auto& name = op.operator_name().name;
    if (name.rfind("aten::", 0) != 0 || KEPT.count(name) || Signature(op).is_view) return false;
    // Without cuDNN torch takes a convolution apart before it comes to CUDA; the CPU has a whole one.
    bool has_cuda_kernel = op.hasKernelForDispatchKey(c10::DispatchKey::CUDA) || name == "aten::convolution";
    return has_cuda_kernel && op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU);
}

bool is_plain_copy(const Tensor& to, const Tensor& from) {
    return to.dtype() == from.dtype() && to.sizes() == from.sizes() && to.is_contiguous() && from.is_contiguous() &&
           to.is_conj() == from.is_conj() && to.is_neg() == from.is_neg();
}

// Pinned memory that is let go of meanwhile must not be given to anybody else before the stream has come to the copy.
void keep_until_copied(const Tensor& host, c10::cuda::CUDAStream stream) {
    auto* context = host.storage().data_ptr().get_context();
    at::getHostAllocator(at::kCUDA)->record_event(const_cast<void*>(host.const_data_ptr()), context, stream.unwrap());
}

// Between contiguous tensors a copy is one of the runtime; with conversion it is an operator, on the device's side.
Tensor& copy(Tensor& to, const Tensor& from, bool non_blocking) {
    c10::DeviceGuard guard(to.is_cuda() ? to.device() : from.device());
    bool crosses = !to.is_cuda() || !from.is_cuda();
    if (is_plain_copy(to, from)) {
        auto stream = c10::cuda::getCurrentCUDAStream();
        C10_CUDA_CHECK(cudaMemcpyAsync(to.mutable_data_ptr(), from.const_data_ptr(), to.nbytes(), cudaMemcpyDefault, stream));
        if (crosses && !non_blocking) C10_CUDA_CHECK(cudaStreamSynchronize(stream));
        if (crosses && non_blocking) keep_until_copied(to.is_cuda() ? from : to, stream);
        return to;
    }
    if (crosses) {  // in the right form first, then across, then into place
        auto source = from.expand_as(to).to(to.scalar_type()).contiguous().resolve_conj().resolve_neg();
        if (to.is_contiguous() && !to.is_conj() && !to.is_neg()) return copy(to, source, non_blocking);
        auto moved = at::empty(to.sizes(), source.options().device(to.device()));
        return to.copy_(copy(moved, source, non_blocking));
    }
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
    static const Signature signature(op);
    Stack stack{to, from, non_blocking};
    run(op, signature, &stack);
    return to;
}

// As the CPU does it, with the generator of the device.
std::tuple<Tensor, Tensor> dropout(const Tensor& input, double p, std::optional<bool> train) {
    if (input.numel() == 0 || !train.value_or(true)) return {input.clone(), at::ones_like(input, at::kBool)};
    auto mask = at::empty(input.sizes(), input.options().dtype(at::kBool)).bernoulli_(1 - p);
    double scale = p == 1 ? 0 : 1 / (1 - p);
    return {input.mul(mask).mul_(scale), mask};
}

// Only the mathematical form of attention is made of operators that have CPU kernels.
int64_t choose_math(const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool, std::optional<double>,
                    bool) {
    return 0;
}

void install() {
    static auto& library = *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
    auto level = FLAGS_caffe2_log_level;
    FLAGS_caffe2_log_level = c10::GLOG_ERROR;  // else one warning says that a kernel is replaced
    library.impl("copy_", copy);
    library.impl("native_dropout", dropout);
    library.impl("_fused_sdp_choice", choose_math);
    for (auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
        auto op = c10::Dispatcher::singleton().findSchema(name);
        if (!op || !is_replaced(*op)) continue;
        auto full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
        library.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Replacement>(*op)));
    }
    FLAGS_caffe2_log_level = level;
    stop_at_exit();
}
}  // namespace
}  // namespace imitated

API void imitated_gpu_install_operators() { imitated::install(); }
