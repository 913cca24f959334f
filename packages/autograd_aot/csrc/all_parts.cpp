// The extension `_autograd_nodes`, compiled as one unit: reading torch's headers takes 25 s, each
// part but one or two of its own.

#include "autograd_nodes.cpp"
#include "cut_graphs.cpp"
#include "output_nodes.cpp"
#include "training_calls.cpp"
#include "training_steps.cpp"

PYBIND11_MODULE(_autograd_nodes, module) {
  module.attr("TORCH_VERSION") = DOVETAIL_TORCH_VERSION;
  dovetail::add_graph_functions(module);
  dovetail::add_cut_functions(module);
  dovetail::add_output_nodes(module);
  dovetail::training::add_training_calls(module);
}
