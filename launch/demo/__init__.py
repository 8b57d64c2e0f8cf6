"""The demo's data and model: chats about the standard library's documentation, and a tiny Llama."""
