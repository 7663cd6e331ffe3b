// What is known of an operator from its schema.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <vector>

namespace imitated {
using Operator = c10::OperatorHandle;

struct Signature {
    explicit Signature(const Operator& op) : is_random(op.hasTag(at::Tag::nondeterministic_seeded)) {
        auto& schema = op.schema();
        for (auto& argument : schema.arguments()) {
            auto type = argument.type();
            is_generator.push_back(type->str().find("Generator") != std::string::npos);
            is_written.push_back(argument.alias_info() && argument.alias_info()->isWrite());
            takes_generator |= is_generator.back();
            is_in_place &= !argument.is_out();
        }
        for (auto& value : schema.returns()) {
            auto type = value.type()->str();
            returns_tensors_only &= type == "Tensor" || type == "Tensor[]";
            is_view |= value.alias_info() && !value.alias_info()->isWrite();
            argument_of_return.push_back(argument_with(schema, value.alias_info()));
            is_in_place &= argument_of_return.back().has_value();
        }
        has_meta = is_in_place ? op.hasKernelForDispatchKey(c10::DispatchKey::Meta)
                               : op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta);
    }

    std::vector<bool> is_generator;
    std::vector<bool> is_written;
    std::vector<std::optional<size_t>> argument_of_return;  // for operators in place and those with `out`
    bool is_random;
    bool takes_generator = false;
    bool returns_tensors_only = true;
    bool is_view = false;
    bool is_in_place = true;  // writes to nothing but arguments, whose sizes stay
    bool has_meta;            // can tell what its results look like

  private:
    static std::optional<size_t> argument_with(const c10::FunctionSchema& schema, const c10::AliasInfo* alias) {
        for (size_t i = 0; alias && i < schema.arguments().size(); ++i) {
            auto* other = schema.arguments()[i].alias_info();
            if (other && *other == *alias) return i;
        }
        return {};
    }
};

}  // namespace imitated
