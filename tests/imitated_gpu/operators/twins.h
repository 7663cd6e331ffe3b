// A twin of a CUDA tensor is a CPU tensor over the same memory, or one without memory that tells shapes ("meta").
#pragma once
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>
#include <unordered_map>

namespace imitated {
using at::Tensor;
using c10::IValue;
using Stack = torch::jit::Stack;

inline bool on_cuda(const Tensor& tensor) { return tensor.defined() && tensor.is_cuda(); }

inline void copy_marks(const Tensor& from, const Tensor& to) {
    if (from.is_conj()) to._set_conj(true);
    if (from.is_neg()) to._set_neg(true);
    if (from.dim() == 0) to.unsafeGetTensorImpl()->set_wrapped_number(from.unsafeGetTensorImpl()->is_wrapped_number());
}

// Owns nothing: as with a kernel, the memory is still there because it is given back in the order of the stream.
inline Tensor host_twin(const Tensor& tensor) {
    if (tensor.numel() == 0) return at::empty(tensor.sizes(), at::TensorOptions(at::kCPU).dtype(tensor.dtype()));
    at::DataPtr data(tensor.storage().mutable_data(), at::kCPU);
    c10::Storage storage(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(), std::move(data), nullptr, false);
    auto twin = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
    twin.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    copy_marks(tensor, twin);
    return twin;
}

// A number that became a tensor stays one: Python's meta kernels want it on the CPU.
inline Tensor meta_twin(const Tensor& tensor) {
    if (tensor.is_cpu() && tensor.dim() == 0) return tensor;
    auto twin = at::empty_strided(tensor.sizes(), tensor.strides(), at::TensorOptions(at::kMeta).dtype(tensor.dtype()));
    copy_marks(tensor, twin);
    return twin;
}

// What a kernel would be given by value: the host may change the original before the stream gets there.
inline Tensor copy_of(const Tensor& tensor) {
    auto copy = tensor.clone();
    copy_marks(tensor, copy);
    return copy;
}

using Change = std::function<Tensor(const Tensor&)>;

// The same value with each tensor in it exchanged.
inline IValue with_tensors(const IValue& value, const Change& change) {
    if (value.isTensor()) return change(value.toTensor());
    if (value.isTensorList()) {
        c10::List<Tensor> list;
        for (const Tensor& tensor : value.toTensorVector()) list.push_back(change(tensor));
        return list;
    }
    if (value.isOptionalTensorList()) {
        c10::List<std::optional<Tensor>> list;
        for (std::optional<Tensor> tensor : value.toOptionalTensorList()) {
            list.push_back(tensor && tensor->defined() ? std::optional<Tensor>(change(*tensor)) : tensor);
        }
        return list;
    }
    return value;
}

inline void for_tensors(const IValue& value, const std::function<void(const Tensor&)>& use) {
    with_tensors(value, [&](const Tensor& tensor) {
        if (tensor.defined()) use(tensor);
        return tensor;
    });
}

// The same tensor has the same twin within one call: kernels treat operands that are one differently.
class Twins {
  public:
    explicit Twins(Change make) : make_(std::move(make)) {}

    Tensor operator()(const Tensor& tensor) {
        if (!tensor.defined()) return tensor;
        auto& twin = made_[tensor.unsafeGetTensorImpl()];
        if (!twin.defined()) twin = make_(tensor);
        return twin;
    }

  private:
    Change make_;
    std::unordered_map<at::TensorImpl*, Tensor> made_;
};

}  // namespace imitated
