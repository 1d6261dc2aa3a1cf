"""Values in the format of vLLM-Omni's OmniSerializer, which its connectors write."""
