"""The server that `concertino demo` starts, calls and kills."""

from concertino import Server

server = Server("calculator")


@server.tool
async def add(a: int, b: int) -> int:
    "Add two integers."
    print("adding", a, b)
    return a + b


if __name__ == "__main__":
    server.run()
