"""The paper's theory at work: costs, Hamiltonian terms, discount, and the conditions of stability.

Pure functions of one replica; what maps them over a run's replicas is `dpmcl.training.monitor`.
"""
