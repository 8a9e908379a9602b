"""A second server with a tool of the same name as the shop's, and none of the reserved ones."""

from __future__ import annotations

from mcp.server.fastmcp import FastMCP

server = FastMCP("cafe")


@server.tool()
def say(text: str) -> str:
    """Say it over coffee."""
    return f"cafe: {text}"


if __name__ == "__main__":
    server.run()
