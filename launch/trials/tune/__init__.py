"""`tune`: the fastest setting that fits and keeps a stage's mathematics, predicted first, then
probed in short runs.
"""
