"""The key index in C. Without a C compiler at installation, a dict replaces it."""
