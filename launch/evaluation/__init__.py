"""What a finished run is worth: its answers, its scores in the harness, and how it compares with
other runs.
"""
