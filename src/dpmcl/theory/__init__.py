"""The paper's theory in numbers: costs, Hamiltonian terms, discount and conditions of stability.

The functions that measure a model are pure functions of one replica; `dpmcl.training.monitor` maps
them over the replicas of a run.
"""
