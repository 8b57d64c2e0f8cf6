"""The demo's data and model: small questions about Python whose answers Python computes, and a tiny
Llama.
"""

# the identity of the demo, in the names of its folders and so in the identity of its plans: it
# stands for the rows of tasks.py, make_model.py, the chat template and the seed, and a change of
# one needs another key
DEMO_KEY = "7c19f4ae20d85b36"
