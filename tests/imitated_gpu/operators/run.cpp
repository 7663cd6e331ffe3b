// Every operator on CUDA tensors is done by its CPU kernel over the same memory: on the thread of the current stream, or, where its
// results cannot be planned (or CUDA_LAUNCH_BLOCKING is set), by the host, which waits for the stream before.
#include "run.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <shared_mutex>

#include "../runtime/imitation.h"
#include "names.h"

namespace imitated {
namespace {
std::atomic<long> queued{0};
std::atomic<long> waited_for{0};

struct Kernel {
    Operator op;
    Stack arguments;
    std::vector<std::pair<size_t, IValue>> targets;  // return, and where it belongs
};

// When the process ends, operators that run are waited for, and others are dropped: none meets libraries that are torn down.
struct Running {
    std::shared_mutex mutex;
    bool over = false;
};

Running& running() {
    static auto& made = *new Running;
    return made;
}

void write_result(const IValue& result, const IValue& target) {
    if (target.isTensor()) {
        if (!target.toTensor().defined()) return;
        TORCH_CHECK(target.toTensor().sizes() == result.toTensor().sizes(), "the planned shape is wrong");
        target.toTensor().copy_(result.toTensor());
        return;
    }
    auto results = result.toTensorVector();
    auto targets = target.toTensorVector();
    TORCH_CHECK(results.size() == targets.size(), "the planned number of results is wrong");
    for (size_t i = 0; i < results.size(); ++i) write_result(results[i], targets[i]);
}

void call_on_host(const Operator& op, Stack& stack) {
    at::AutoDispatchBelowADInplaceOrView guard;
    op.callBoxed(stack);
}

void run_kernel(void* argument) {
    std::unique_ptr<Kernel> kernel((Kernel*)argument);
    std::shared_lock lock(running().mutex);
    if (running().over || imitated_gpu_device_error()) return;
    try {
        call_on_host(kernel->op, kernel->arguments);
        for (auto& [index, target] : kernel->targets) write_result(kernel->arguments[index], target);
    } catch (const std::exception& error) {  // a kernel cannot raise anything else on the host
        fprintf(stderr, "imitated GPU: device-side assert in %s: %s\n", kernel->op.operator_name().name.c_str(), error.what());
        imitated_gpu_fail_device(cudaErrorAssert);
    }
}

Tensor twin_for_kernel(const Tensor& tensor) { return on_cuda(tensor) ? host_twin(tensor) : copy_of(tensor); }

void queue(const Call& call, const Stack& outputs) {
    Twins twins(twin_for_kernel);
    auto kernel = std::make_unique<Kernel>(Kernel{call.op, call.arguments_for(at::kCPU, std::ref(twins)), {}});
    for (size_t i = 0; i < outputs.size(); ++i) {
        auto to_host = [](const Tensor& tensor) { return tensor.defined() ? host_twin(tensor) : tensor; };
        if (!call.signature.argument_of_return[i]) kernel->targets.emplace_back(i, with_tensors(outputs[i], to_host));
    }
    static const char* blocking = getenv("CUDA_LAUNCH_BLOCKING");
    auto stream = c10::cuda::getCurrentCUDAStream();
    C10_CUDA_CHECK(imitated_gpu_device_error());
    imitated_gpu_run(stream, run_kernel, kernel.release());
    ++queued;
    if (blocking && *blocking == '1') C10_CUDA_CHECK(cudaStreamSynchronize(stream));
}

// Random operators without a generator use the default one: it stands in for the device's meanwhile.
class DefaultGenerator {
  public:
    explicit DefaultGenerator(bool exchange) : exchanged_(exchange) {
        if (!exchanged_) return;
        before_ = default_().get_state();
        default_().set_current_seed(host_generator({}).current_seed());
    }
    ~DefaultGenerator() {
        if (exchanged_) default_().set_state(before_);
    }

  private:
    static at::Generator default_() { return at::detail::getDefaultCPUGenerator(); }
    bool exchanged_;
    Tensor before_;
};

Tensor to_device(const Tensor& result, at::Device device) {
    if (!result.defined() || !result.is_cpu()) return result;
    auto made = at::empty_strided(result.sizes(), result.strides(), result.options().device(device));
    host_twin(made).copy_(result);
    return made;
}

void bring_back_resized(const Tensor& original, const Tensor& twin) {
    if (!on_cuda(original) || original.sizes() == twin.sizes()) return;
    original.resize_(twin.sizes());
    host_twin(original).copy_(twin);
}

Stack run_now(const Call& call) {
    static const bool tracing = getenv(names::TRACE_VARIABLE);
    if (tracing) fprintf(stderr, "imitated GPU: the host waits for %s\n", toString(call.op.operator_name()).c_str());
    ++waited_for;
    Twins twins([](const Tensor& tensor) { return on_cuda(tensor) ? host_twin(tensor) : tensor; });
    auto made = call.arguments_for(at::kCPU, std::ref(twins));
    C10_CUDA_CHECK(cudaStreamSynchronize(c10::cuda::getCurrentCUDAStream()));
    {
        DefaultGenerator generator(call.signature.is_random && !call.signature.takes_generator);
        call_on_host(call.op, made);
    }
    call.for_written([&](const Tensor& tensor) { bring_back_resized(tensor, twins(tensor)); });
    return call.results(made, [&](const Tensor& result) { return to_device(result, call.device); });
}
}  // namespace

void run(const Operator& op, const Signature& signature, Stack* stack) {
    Call call(op, signature, *stack);
    c10::cuda::CUDAGuard guard(call.device);
    auto results = plan(call);
    if (results) {
        queue(call, *results);
    } else {
        results = run_now(call);
    }
    torch::jit::drop(*stack, call.arguments.size());
    stack->insert(stack->end(), results->begin(), results->end());
}

void stop_at_exit() {
    atexit([] {
        std::unique_lock lock(running().mutex);
        running().over = true;
    });
}

}  // namespace imitated

API long imitated_gpu_queued_operators() { return imitated::queued; }

API long imitated_gpu_waited_for_operators() { return imitated::waited_for; }
