"""Execution on an NVIDIA GPU, whatever engine computes: memory, streams, graphs and profiles around an ``Executor`` (``executor.py``).

::

    model.py ── pipelines of one model
        └─ pipeline.py, lane.py ── lanes: copies and computes, in order ──► executor.py (the protocol an engine satisfies)
            │   └─ lane_buffers.py, graph_cache.py, profiles.py
            └─ device.py: one GPU of this process, its memory pool (pool.py) and whether it has failed
                   └─ driver.py: every CUDA call, through cuda-python

Nothing but ``driver.py`` imports CUDA, and only when a model is placed on a GPU.
"""
