"""One node of a Slurm job: supervises the ranks of this node and reacts to Slurm and to the job's
other nodes.
"""
