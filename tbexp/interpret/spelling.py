"""Text that spells a special token stays text.

What a user or a tool says may spell `<|im_end|>`, by chance or to speak for another. Encoded with the rest of the
rendered conversation it would become the token itself. Decided here: which tokens are kept from being spelled, and how
the spelled text is encoded: as the tokenizer would if it did not know these tokens, merges with the text around it
included. Text that spells none gets exactly the tokens that it always had.

How: before the template runs, each spelling in a message is replaced by a cover, which no tokenizer knows. Afterwards
what still spells a token was written by the template. Only where there are covers, a copy of the tokenizer encodes the
text: it knows the template's tokens by other names, and the covers are taken off before. Covers and names carry a
random number, so no message can contain them.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from tbexp.errors import UserError

_DELIMITER = re.compile(r"<[|｜].*[|｜]>", re.DOTALL)
_MARKUP = re.compile(r"[<\[|｜]")


class Spelling:
    """tokenizer: a fast transformers tokenizer with its chat template."""

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        ids: Mapping[str, int] = tokenizer.get_added_vocab()
        self._ids = {text: ids[text] for text in _guarded(tokenizer)}
        self._all = frozenset(self._ids.values())
        number = secrets.token_hex(8)
        self._covers = {text: f"\ue000{number}c{i}\ue001" for i, text in enumerate(self._ids)}
        self._names = {text: f"\ue000{number}n{i}\ue001" for i, text in enumerate(self._ids)}
        self._texts = {cover: text for text, cover in self._covers.items()}
        self._spelled = _any_of(self._ids)
        self._covered = re.compile(f"\ue000{number}c[0-9]+\ue001")
        self._copy: Any = None
        self._of_copy: dict[int, int] = {}

    def cover(self, text: str) -> str:
        """The text with a cover in place of each spelled token."""
        return text if self._spelled is None else self._spelled.sub(lambda m: self._covers[m.group()], text)

    def cover_all(self, value: Any) -> Any:
        """Every text of a JSON value covered, names of members too."""
        if isinstance(value, str):
            return self.cover(value)
        if isinstance(value, Mapping):
            return {self.cover_all(name): self.cover_all(member) for name, member in value.items()}
        return [self.cover_all(member) for member in value] if isinstance(value, (list, tuple)) else value

    def uncover(self, text: str) -> str:
        """The text as it was before."""
        return self._covered.sub(lambda m: self._texts[m.group()], text)

    def encode(self, text: str) -> list[int]:
        """The tokens of a rendered text: special ones where the template wrote them, and nowhere else.

        UserError when the tokenizer's copy does not encode as the tokenizer itself.
        """
        if self._spelled is None:
            return self._plain(text)
        wanted = [self._ids[m.group()] for m in self._spelled.finditer(text)]
        if not self._covered.search(text):
            ids = self._plain(text)
            if self._special(ids) == wanted:
                return ids
        else:
            bare = self._covered.sub("", text)
            if self._encode_by_copy(bare) != self._plain(bare):
                raise UserError("text that spells special tokens cannot be encoded as text with this tokenizer")
        ids = self._encode_by_copy(text)
        if self._special(ids) != wanted:
            raise UserError("this tokenizer makes special tokens of text that does not stand for them")
        return ids

    def _special(self, ids: Sequence[int]) -> list[int]:
        return [i for i in ids if i in self._all]

    def _plain(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def _encode_by_copy(self, text: str) -> list[int]:
        if self._copy is None:
            self._copy, self._of_copy = self._make_copy()
        assert self._spelled is not None
        named = self.uncover(self._spelled.sub(lambda m: self._names[m.group()], text))
        ids = self._copy.encode(named, add_special_tokens=False).ids
        return [self._of_copy.get(i, i) for i in ids]

    def _make_copy(self) -> tuple[Any, dict[int, int]]:
        """A tokenizer that knows the guarded tokens by their names only, and its ids of added tokens as ours."""
        from tokenizers import AddedToken, Tokenizer

        state = json.loads(self._tokenizer.backend_tokenizer.to_str())
        added = state["added_tokens"]
        state["added_tokens"] = [token for token in added if token["content"] not in self._ids]
        state["truncation"] = state["padding"] = None
        state["post_processor"] = None  # it may name tokens that the copy does not have
        copy = Tokenizer.from_str(json.dumps(state))
        copy.add_tokens(
            [
                AddedToken(
                    self._names[token["content"]],
                    single_word=token["single_word"],
                    lstrip=token["lstrip"],
                    rstrip=token["rstrip"],
                    normalized=False,
                )
                for token in added
                if token["content"] in self._ids
            ]
        )
        ours = {**self._tokenizer.get_added_vocab(), **{name: self._ids[text] for text, name in self._names.items()}}
        return copy, {i: ours[token.content] for i, token in copy.get_added_tokens_decoder().items()}


def _guarded(tokenizer: Any) -> list[str]:
    """Added tokens that are no ordinary text: special by their own flag, written by the template, or `<|delimiters|>`.

    Others stay as they are: some tokenizers have runs of line breaks or tags of HTML among their added tokens.
    """
    template = str(tokenizer.chat_template or "")
    return [
        token.content
        for token in tokenizer.added_tokens_decoder.values()
        if token.content
        and (
            token.special
            or _DELIMITER.fullmatch(token.content)
            or (_MARKUP.search(token.content) and token.content in template)
        )
    ]


def _any_of(texts: Mapping[str, int]) -> re.Pattern[str] | None:
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
