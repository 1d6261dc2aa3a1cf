"""vLLM's caches over the exchange: connectors for its KV transfer (`kv`) and its encoder cache (`ec`).

These two modules, and `pages`, need vLLM and torch.
"""
