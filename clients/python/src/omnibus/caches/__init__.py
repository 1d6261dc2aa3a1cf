"""vLLM's caches over the exchange: its KV transfer (`kv`) and its encoder cache (`ec`), which its configuration names.

These two modules, and `pages`, need vLLM and torch. The rest of the package does not.
"""
