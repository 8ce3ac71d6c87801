"""The asyncio runtime: serves backends on connections, and creates every task and Context.

Host (host.py) starts a backend once and attaches connections to it. ServerConnection
(server_connection.py) serves one of them, CallRunner (call_runner.py) runs its calls, and run()
(process.py) does all of this for a whole process.
"""
