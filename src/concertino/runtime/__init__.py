"""The asyncio runtime: serves backends on connections, and creates every task and Context.

Read these modules first, in this order. Host (host.py) starts a backend once and attaches
connections to it. ServerConnection (server_connection.py) serves one connection. CallRunner
(call_runner.py) runs the calls of a connection, and call_answers.py answers the calls that do not
simply return a result. CallContext (context.py) is the object that handlers get. run() (process.py)
does all of this for a whole process.
"""
