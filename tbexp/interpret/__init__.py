"""The one reading of model output, and the rendering of conversations as tokens.

Decided here: what a completion says (`read`), how a conversation becomes tokens (`Renderer`), and how the text of an
argument becomes a value (`TABLE`). Left to others: who produces tokens (policy), what a call does (sandbox, episode).
"""

from tbexp.interpret.messages import Message, Reading, Role, ToolCall, ToolSpec
from tbexp.interpret.reading import read, read_chat_message, render_call
from tbexp.interpret.rendering import Renderer, RenderMismatch, TokenConversation
from tbexp.interpret.typing_rules import TABLE, table_markdown

__all__ = [
    "TABLE",
    "Message",
    "Reading",
    "RenderMismatch",
    "Renderer",
    "Role",
    "TokenConversation",
    "ToolCall",
    "ToolSpec",
    "read",
    "read_chat_message",
    "render_call",
    "table_markdown",
]
