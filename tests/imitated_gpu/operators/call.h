// One call of an operator with CUDA tensors.
#pragma once
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/cuda/CUDAFunctions.h>

#include "signature.h"
#include "twins.h"

namespace imitated {

// Draws seed and offset of a CUDA generator, as kernels do: saved and restored states repeat what was drawn.
inline at::Generator host_generator(std::optional<at::Generator> given) {
    auto generator = given ? *given : at::cuda::detail::getDefaultCUDAGenerator();
    auto* device = at::check_generator<at::CUDAGeneratorImpl>(generator);
    std::lock_guard<std::mutex> lock(device->mutex_);
    auto [seed, offset] = device->philox_engine_inputs(4);
    return at::make_generator<at::CPUGeneratorImpl>(seed * 1000003 + offset + 1);
}

class Call {
  public:
    Call(const Operator& op, const Signature& signature, const Stack& stack) : op(op), signature(signature) {
        auto last = torch::jit::last(stack, signature.is_written.size());
        arguments.assign(last.begin(), last.end());
        std::optional<at::Device> found;
        for (auto& argument : arguments) {
            for_tensors(argument, [&](const Tensor& tensor) {
                if (tensor.is_cuda()) found = tensor.device();
            });
        }
        for (auto& argument : arguments) {
            if (!found && argument.isDevice() && argument.toDevice().is_cuda()) found = argument.toDevice();
        }
        if (found && found->has_index()) device = *found;
    }

    void for_written(const std::function<void(const Tensor&)>& use) const {
        for (size_t i = 0; i < arguments.size(); ++i) {
            if (signature.is_written[i]) for_tensors(arguments[i], use);
        }
    }

    // The arguments for another device. Drawing from the device's generator is part of it, for the CPU.
    Stack arguments_for(at::Device other, const Change& twin) const {
        Stack changed;
        for (size_t i = 0; i < arguments.size(); ++i) {
            auto& value = arguments[i];
            if (signature.is_generator[i]) {
                changed.push_back(other.is_cpu() ? generator_for_host(value) : IValue());
            } else {
                changed.push_back(value.isDevice() ? IValue(other) : with_tensors(value, twin));
            }
        }
        return changed;
    }

    // The results, where `made` are those that are not arguments anyway.
    Stack results(const Stack& made, const Change& place) const {
        Stack all;
        for (size_t i = 0; i < signature.argument_of_return.size(); ++i) {
            auto argument = signature.argument_of_return[i];
            all.push_back(argument ? arguments[*argument] : with_tensors(made[i], place));
        }
        return all;
    }

    const Operator op;
    const Signature& signature;
    Stack arguments;
    at::Device device{at::kCUDA, c10::cuda::current_device()};

  private:
    static IValue generator_for_host(const IValue& given) {
        if (!given.isGenerator()) return host_generator({});
        auto generator = given.toGenerator();
        return generator.device().is_cpu() ? generator : host_generator(generator);
    }
};

// What the results look like, found without computing them; nothing if that cannot be found out.
// Tensors that the operator writes to have their final size afterwards.
std::optional<Stack> plan(const Call& call);

}  // namespace imitated
