"""Package `inference`: the Open Inference Protocol, and the short float service."""
