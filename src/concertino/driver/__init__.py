"""The asyncio engine: the one place that makes tasks and Contexts, and the one that catches Exception."""
