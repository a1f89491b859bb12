"""Package `trt`: the short byte service."""
