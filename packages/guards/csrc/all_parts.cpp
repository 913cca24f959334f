// The extension is compiled as one unit: most of the time goes into reading torch's headers.

#include "module.cpp"

#include "accumulator.cpp"
