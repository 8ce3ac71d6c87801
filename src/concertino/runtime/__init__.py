"""The asyncio runtime: serves backends on connections, and creates every task and Context."""
