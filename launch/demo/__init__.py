"""The demo's data and model: chats about the standard library's documentation, and a tiny Llama."""

# the identity of the demo, in the names of its folders and so in the identity of its plans: it stands for the shipped
# rows, make_model.py, the chat template and the seed, and a change of one needs another key
DEMO_KEY = "66e0fbafc38932e4"
