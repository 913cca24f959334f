// Hooks of autograd's nodes, for which autograd's own headers are needed.
#pragma once

namespace c10 {
struct TensorImpl;
}

namespace dovetail {

// Is there a hook, of Python or C++, on the node that accumulates the gradient of this leaf? (Not
// counted: hooks of the tensor itself. A node that nobody holds any more has none.)
bool accumulator_has_hooks(c10::TensorImpl* impl);

}  // namespace dovetail
