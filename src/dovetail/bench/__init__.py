"""The benchmark behind `dovetail bench`: models, a worker process, a driver and its table."""
