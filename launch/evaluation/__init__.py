"""The evaluation of finished runs: their answers, their scores in lm-evaluation-harness, and their
comparison with other runs.
"""
