"""Guards: rules that watch a live run and stop it. Pure: timed facts go in, findings come out."""
