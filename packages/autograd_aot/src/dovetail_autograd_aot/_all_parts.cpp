// The extension is compiled as one unit: reading torch's headers takes 25 s, each part but one or
// two of its own.

#include "_autograd_nodes.cpp"
#include "_gradient_places.cpp"
#include "_output_nodes.cpp"
#include "_training_calls.cpp"
#include "_training_steps.cpp"
#include "_version_counters.cpp"
