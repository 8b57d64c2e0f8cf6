"""What a training step costs, computed before it runs: memory per GPU, and time. Standard library
only.
"""
