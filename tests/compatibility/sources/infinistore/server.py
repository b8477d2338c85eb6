"""Runs InfiniStore's server without the change of its `oom_score_adj`, which requires CAP_SYS_RESOURCE."""
import infinistore.server

infinistore.server.prevent_oom = lambda: None
infinistore.server.main()
