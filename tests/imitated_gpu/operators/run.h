#pragma once
#include "call.h"

namespace imitated {
void run(const Operator& op, const Signature& signature, Stack* stack);
void stop_at_exit();
}  // namespace imitated
