// The extension is compiled as one unit: reading torch's headers takes 25 s, each part but one or
// two of its own.

#include "autograd_nodes.cpp"
#include "gradient_places.cpp"
#include "output_nodes.cpp"
#include "training_calls.cpp"
#include "training_steps.cpp"
#include "version_counters.cpp"
