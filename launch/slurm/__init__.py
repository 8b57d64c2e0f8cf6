"""Runs of one or several nodes as Slurm jobs: the batch script, submitting it, and what the nodes
do in it.
"""
